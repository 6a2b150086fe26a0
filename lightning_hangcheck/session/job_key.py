"""Which job is this process of, and which start of it? By what its launcher told each rank.

    job_key     the job: the same for all its ranks, on all nodes, in all its rounds
    node_key    the job on this node, in all its rounds, and no other job's: a session's key
    start_key   one start of the job on this node: another one in each round; where guards meet
    key_of_nodes   the job on all nodes, for guards: which start it is, the ranks find out there

A round is one start of the job's ranks: torchrun starts them all again when one fails, SLURM when
a job is requeued.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.machine.process_stat import read_process_stat
from lightning_hangcheck.machine.which_machine import which_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.identity import Identity

UNNAMED_RUN = "none"
"""torchrun's --rdzv-id unless somebody sets it."""
MOST_WRAPPERS = 8
"""Shells between torchrun and a rank that are looked through."""


def job_key(environment: Mapping[str, str], identity: Identity) -> str:
    """A key that all ranks of the job share, whatever their node and round.

    Jobs that follow each other with the same rendezvous address and no --rdzv-id share it, where
    they are spread over nodes: nothing that torchrun tells all nodes differs.

    Args:
        environment: Of this process.
        identity: What it says.
    """
    started_by_hand = identity.launcher in ("none", "lightning")
    spread = "NODE_RANK" in environment and "MASTER_ADDR" in environment
    alone = identity.nodes == 1 and not (started_by_hand and spread)
    if alone or identity.launcher == "slurm":
        return node_key(environment, identity)
    run = environment.get("TORCHELASTIC_RUN_ID", UNNAMED_RUN)
    if run != UNNAMED_RUN:
        return f"torchrun-{run}"
    parts = (environment.get(name, "0") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return "-".join(("plain" if started_by_hand else identity.launcher, *parts))


def node_key(environment: Mapping[str, str], identity: Identity) -> str:
    """A key that the ranks of the job share on this node in all its rounds, and no other job has.

    Args:
        environment: Of this process.
        identity: What it says.
    """
    if identity.launcher == "torchrun":
        return f"torchrun-{_named_for_ever(agent_pid(environment))}"
    if identity.launcher == "slurm":
        return f"slurm-{environment.get('SLURM_JOB_ID')}-{environment.get('SLURM_STEP_ID')}"
    if identity.launcher == "environment":
        named = f"port-{environment.get('MASTER_PORT', '0')}-session-{os.getsid(0)}"
        # daemons of two nodes may be tried on one machine, started from one terminal
        node = "" if identity.node_rank is None else f"-node-{identity.node_rank}"
        return f"{named}{node}-{which_machine()}"
    return f"pid-{_named_for_ever(_starter_pid(identity))}"


def start_key(environment: Mapping[str, str], identity: Identity) -> str:
    """A key that the ranks of this start of the job share on this node, and no other start has.

    One session can see several: a launcher that restarts failed ranks, a script that trains twice.

    Args:
        environment: Of this process.
        identity: What it says.
    """
    if identity.launcher == "torchrun":
        count = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return "-".join((key_of_nodes(environment, identity), count, *_attempt(environment)))
    started = node_key(environment, identity)
    spawned = _spawned_as()
    if identity.launcher in ("none", "lightning") and spawned is not None:
        return f"{started}-spawn-{_first_sibling(spawned, identity.local_rank or 0)}"
    return started if identity.round is None else f"{started}-{identity.round}"


def _attempt(environment: Mapping[str, str]) -> tuple[str, ...]:
    """What differs between two starts on this node even where all that torchrun tells is equal.

    torchrun makes <its temporary folder>/<run id>_<random>/attempt_<n>/<local rank>/error.json anew
    for each start, with the same number where nodes came or went: the moment of its making differs.
    """
    error_file = Path(environment.get("TORCHELASTIC_ERROR_FILE", ""))
    try:
        made = error_file.parents[1].stat()
    except (IndexError, OSError):
        return error_file.parts[-4:-2]
    return (*error_file.parts[-4:-2], f"{made.st_ino:x}", f"{made.st_mtime_ns:x}")


def key_of_nodes(environment: Mapping[str, str], identity: Identity) -> str:
    """A key that all ranks of the job share on all nodes; other starts of it may share it.

    TORCHELASTIC_RESTART_COUNT is not in it: in one and the same round it differs between nodes.

    Args:
        environment: Of this process.
        identity: What it says.
    """
    if identity.launcher == "slurm":
        return start_key(environment, identity)
    parts = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "WORLD_SIZE")
    return "-".join((identity.launcher, *(environment.get(part, "0") for part in parts)))


def agent_pid(environment: Mapping[str, str]) -> int:
    """Return torchrun's own process on this node: the first above us that it told no run id.

    It is our parent, unless a shell script stands between (``torchrun --no-python wrapper.sh``).

    Args:
        environment: Of this process.
    """
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    pid = os.getppid()
    for _ in range(MOST_WRAPPERS):
        stat = read_process_stat(pid)
        if stat is None or not _was_told(pid, f"TORCHELASTIC_RUN_ID={run}"):
            return pid
        pid = stat.parent_pid
    return os.getppid()


def _was_told(pid: int, line: str) -> bool:
    try:
        return line.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _starter_pid(identity: Identity) -> int:
    """The process from which Lightning starts, or will start, the other ranks."""
    child = identity.launcher == "lightning" and bool(identity.local_rank)
    return os.getppid() if child or _spawned_as() is not None else os.getpid()


def _spawned_as() -> str | None:
    """Our name among the processes that multiprocessing started; None if it did not start us."""
    # such a child has imported it already; importing it here would cost every other process 10 ms
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return None
    return str(process.current_process().name)


def _first_sibling(name: str, local_rank: int) -> int:
    """The number of the first process that was spawned with us tells one ``fit`` from the next.

    Children of ``ddp_spawn`` number themselves in the order of their start (SpawnProcess-3).
    """
    number = name.rpartition("-")[2]
    return int(number) - local_rank if number.isdecimal() else 0


def _named_for_ever(pid: int) -> str:
    stat = read_process_stat(pid)
    return f"{pid}-{stat.started_ticks if stat else 0}"
