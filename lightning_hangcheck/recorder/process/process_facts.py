"""Is this process a rank, or only the helper of one that inherited its environment?

A DataLoader worker, a compile worker or a script started by a rank carries the rank's RANK and
HANGCHECK_SESSION. If it recorded too, two processes would claim the same rank.

What a rank tells of itself once: the journal's first line, from which run.json is made.

Options as training needs them: one that cannot be used is said, and its default taken.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.machine.process_stat import ancestors
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.recorder.page.reader import PageReader
from lightning_hangcheck.settings import PREFIX, Settings, read_option
from lightning_hangcheck.text.published import DISTRIBUTIONS, published_environment
from lightning_hangcheck.text.redaction import redact_values
from lightning_hangcheck.text.shown_command import show_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.identity import Identity


def is_multiprocessing_child() -> bool:
    """Whether the multiprocessing module started this process, by fork, spawn or forkserver."""
    # such a child has imported it already; importing it here would cost every other process 10 ms
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def is_helper(pages: Path, identity: Identity) -> bool:
    """Whether an ancestor records, and this process has no rank of its own beside it.

    Ranks that Lightning starts from the first one have a LOCAL_RANK that differs from its own.

    Args:
        pages: The session's folder of pages.
        identity: Of this process, by its environment.
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
    return {
        "rank": identity.rank,
        "world_size": identity.world_size,
        "local_rank": identity.local_rank,
        "round": identity.round,
        "launcher": identity.launcher,
        "host": os.uname().nodename,
        "command": show_command(sys.orig_argv),
        "folder": _working_folder(),
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


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""


def usable_settings(environment: Mapping[str, str]) -> Settings:
    """Read the options that the environment sets; says each bad one once and never raises."""
    values: dict[str, object] = {}
    for option in msgspec.structs.fields(Settings):
        text = environment.get(PREFIX + option.name.upper())
        if not text:
            continue
        try:
            values[option.name] = read_option(option.name, text)
        except BadUsage as problem:
            log.once(f"option-{option.name}", f"{problem}; taking the default, {option.default}")
    return msgspec.convert(values, Settings)
