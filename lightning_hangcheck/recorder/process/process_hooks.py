"""The moments of a process at which the recorder must act.

An exception that nobody caught, the exit, a fork, and the end of a multiprocessing child, which
runs no atexit.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING

from lightning_hangcheck.recorder.process.process_facts import is_multiprocessing_child

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


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
