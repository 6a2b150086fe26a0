"""Where a phase runs: host, hardware, commit. Each look is bounded in time and may fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.ledger.book import Place
from lightning_hangcheck.look.gpu import gpu_names
from lightning_hangcheck.look.programs import ChildLate, answer_of
from lightning_hangcheck.machine.process_stat import read_process_stat
from lightning_hangcheck.text.shown_command import show_command

if TYPE_CHECKING:
    from lightning_hangcheck.identity import Identity

GIT_LIMIT_S = 2.0
"""Milliseconds, but for a huge working folder on a network disk."""
GPU_LIMIT_S = 5.0
"""While the driver wakes 8 GPUs it may take a second."""
PROCESSOR = Path("/proc/cpuinfo")


def look_around(identity: Identity) -> Place:
    """Find out where this process is; about 20 ms, or 0.3 s with GPUs.

    Args:
        identity: Of this process.
    """
    stat = read_process_stat(os.getpid())
    commit, dirty = _commit()
    return Place(
        host=os.uname().nodename,
        pid=os.getpid(),
        started_ticks=stat.started_ticks if stat is not None else 0,
        ranks=identity.world_size or 1,
        cpu=_processor(),
        cores=len(os.sched_getaffinity(0)),
        gpus=gpu_names(GPU_LIMIT_S),
        commit=commit,
        dirty=dirty,
        command=show_command(sys.orig_argv),
    )


def _processor() -> str:
    try:
        lines = PROCESSOR.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "")


def _commit() -> tuple[str, bool | None]:
    """The commit of the working folder, and whether tracked files differ from it."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return "", None
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)


def _git(*words: str) -> str | None:
    """Ask git, without taking a lock of the repository; None where it gives no answer."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        ended = answer_of(["git", *words], GIT_LIMIT_S, environment)
    except (OSError, ChildLate):
        return None
    return ended.stdout.decode(errors="replace").strip() if ended.returncode == 0 else None
