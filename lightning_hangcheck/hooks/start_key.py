"""A key for one start of the job, by what its launcher told each rank."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.rundir.process_stat import read_process_stat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.identity import Identity


def start_key(environment: Mapping[str, str], identity: Identity) -> str:
    """A key that the ranks of this start of the job share on this node, and no other start has.

    One session can see several: a launcher that restarts failed ranks, a script that trains twice.

    Args:
        environment: Of this process.
        identity: What it says.
    """
    if identity.launcher == "torchrun":
        # <agent's temporary folder>/<run id>_<random>/attempt_<n>/<local rank>/error.json: the one
        # variable that differs between two starts even where all else is left at its default
        error_file = Path(environment.get("TORCHELASTIC_ERROR_FILE", ""))
        return "-".join((shared_key(environment), *error_file.parts[-4:-2]))
    if identity.launcher == "slurm":
        parts = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return "slurm-" + "-".join(environment.get(part, "0") for part in parts)
    if identity.launcher == "environment":
        return f"port-{environment.get('MASTER_PORT', '0')}-session-{os.getsid(0)}"
    return _plain_start_key(identity)


def shared_key(environment: Mapping[str, str]) -> str:
    """What torchrun tells the ranks of all nodes alike.

    Args:
        environment: Of this process.
    """
    parts = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    return "torchrun-" + "-".join(environment.get(part, "0") for part in parts)


def _plain_start_key(identity: Identity) -> str:
    """Names the process from which Lightning starts, or will start, the other ranks.

    Children of ``ddp_spawn`` number themselves in the order of their start (SpawnProcess-3), so the
    number of the first of them tells one ``fit`` of the script from the next.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        number = multiprocessing.current_process().name.rpartition("-")[2]
        first = int(number) - (identity.local_rank or 0) if number.isdecimal() else 0
        return f"{_named_for_ever(parent.pid)}-spawn-{first}"
    child = identity.launcher == "lightning" and bool(identity.local_rank)
    return _named_for_ever(os.getppid() if child else os.getpid())


def _named_for_ever(pid: int) -> str:
    stat = read_process_stat(pid)
    return f"pid-{pid}-{stat.started_ticks if stat else 0}"
