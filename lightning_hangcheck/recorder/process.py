"""The process that records: what it is, and what it tells the recorder."""

from __future__ import annotations

import atexit
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.machine import ancestors
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.recorder.page import PageReader
from lightning_hangcheck.text.redaction import redact_values
from lightning_hangcheck.text.shown import DISTRIBUTIONS, published_environment, show_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from lightning_hangcheck.identity import Identity


class ProcessHooks:
    """Installs them once; a forked child inherits them.

    Args:
        on_uncaught: Told the exception that ends the program, before Python prints it.
        on_exit: Called when the interpreter begins to exit; may be called twice.
        on_fork: Called in a forked child before anything else runs in it.
    """

    def __init__(
        self,
        on_uncaught: Callable[[BaseException], object],
        on_exit: Callable[[], object],
        on_fork: Callable[[], object],
    ) -> None:
        self._on_uncaught = on_uncaught
        self._on_exit = on_exit
        self._on_fork = on_fork
        self._installed = False
        self._next_hook = sys.excepthook

    def install(self) -> None:
        """Install those that this process does not have yet."""
        if not self._installed:
            self._installed = True
            atexit.register(self._on_exit)
            os.register_at_fork(after_in_child=self._on_fork)
            self._next_hook, sys.excepthook = sys.excepthook, self._excepthook
        if is_multiprocessing_child():
            from multiprocessing.util import Finalize  # imported already in such a child

            Finalize(None, self._end_child, exitpriority=0)

    def _excepthook(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._on_uncaught(error)
        finally:
            self._next_hook(kind, error, traceback)

    def _end_child(self) -> None:
        """Called in the ``finally`` of multiprocessing's bootstrap: the exception is at hand.

        From Python 3.13 on it is called later, and the exception is forgotten by then.
        """
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            # torch's wrapper answers an exception by sys.exit(1) from within its handler
            error = error.__context__ if error.code else None
        if error is not None:
            self._on_uncaught(error)
        self._on_exit()


def is_multiprocessing_child() -> bool:
    """Whether the multiprocessing module started this process, by fork, spawn or forkserver."""
    # such a child has imported it already; importing it here would cost every other process 10 ms
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def is_helper(pages: Path, identity: Identity) -> bool:
    """Whether an ancestor records, and this process has no rank of its own beside it.

    Ranks that Lightning starts from the first one have a LOCAL_RANK that differs from its own.
    """
    for pid in ancestors(os.getpid()):
        reader = PageReader(pages / f"{pid}.page")
        page = reader.read()
        reader.close()
        if isinstance(page, Beat):
            claimed = (identity.rank, identity.local_rank)
            return claimed in ((None, None), (page.rank, page.local_rank))
    return False


def start_facts(environment: Mapping[str, str], identity: Identity) -> dict[str, object]:
    """Gather who and where this process is, redacted. Imports nothing."""
    folder = ""
    with suppress(OSError):  # it was removed
        folder = str(Path.cwd())
    return {
        "rank": identity.rank,
        "world_size": identity.world_size,
        "local_rank": identity.local_rank,
        "round": identity.round,
        "launcher": identity.launcher,
        "host": os.uname().nodename,
        "command": show_command(sys.orig_argv),
        "folder": folder,
        "versions": versions(),
        "environment": redact_values(published_environment(environment)),
    }


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the frameworks that are imported by now."""
    modules = [name.replace("-", "_") for name in DISTRIBUTIONS]
    found = {
        name: str(getattr(sys.modules[name], "__version__", "unknown"))
        for name in modules
        if sys.modules.get(name) is not None
    }
    return {"python": platform.python_version(), **found}
