"""The checks that `hangcheck run` makes while it starts, quick enough not to be noticed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.seeing.python_version import python_version
from lightning_hangcheck.doctor.seeing.room_to_record import (
    run_folder_writable,
    shared_memory_usable,
)
from lightning_hangcheck.doctor.seeing.stacks_readable import stacks_readable
from lightning_hangcheck.doctor.surroundings.debug_settings import debug_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lightning_hangcheck.doctor.check import Check

# Together below 1.5 s in the worst case; about 0.06 s where all is well.
STACKS_LIMIT_S = 1.2
FOLDER_LIMIT_S = 1.0


def checks_before_run(run_dir: Path, environment: Mapping[str, str]) -> tuple[Check, ...]:
    """Make all checks at once, within 1.5 s.

    Args:
        run_dir: The run folder; need not be there yet.
        environment: That the ranks will have.

    Returns:
        Every check, also those that are ``ok``: those on the environment last.
    """
    checks: list[Callable[[], Check]] = [
        partial(stacks_readable, STACKS_LIMIT_S),
        partial(run_folder_writable, run_dir, FOLDER_LIMIT_S),
        shared_memory_usable,
        python_version,
    ]
    with ThreadPoolExecutor(len(checks), thread_name_prefix="hangcheck-check") as pool:
        found = tuple(pool.map(lambda check: check(), checks))
    return found + debug_settings(environment)
