"""Reads from the launcher's variables which job, start of the job and node a process is of."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.files.safe import read_fact, write_atomically
from lightning_hangcheck.identity import identify
from lightning_hangcheck.machine import read_process_stat, which_machine
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import NodePlace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.identity import Identity
    from lightning_hangcheck.session.session import Session


UNNAMED_RUN = "none"  # torchrun's --rdzv-id if nobody sets it
MOST_WRAPPERS = 8  # shells between torchrun and a rank that are looked through


def job_key(environment: Mapping[str, str], identity: Identity) -> str:
    """Return a key that all ranks of the job share, whatever their node and round.

    Successive jobs on several nodes with the same rendezvous address and no --rdzv-id share the
    key: nothing that torchrun tells all nodes differs between them.
    """
    started_by_hand = identity.launcher in ("none", "lightning")
    spread = "NODE_RANK" in environment and "MASTER_ADDR" in environment
    alone = identity.nodes == 1 and not (started_by_hand and spread)
    if alone or identity.launcher == "slurm":
        return node_key(environment, identity)
    run = environment.get("TORCHELASTIC_RUN_ID", UNNAMED_RUN)
    if run != UNNAMED_RUN:
        return f"torchrun-{run}"
    launcher = "plain" if started_by_hand else identity.launcher
    return f"{launcher}-{identity.store_host or 0}-{identity.store_port or 0}"


def node_key(environment: Mapping[str, str], identity: Identity) -> str:
    """Return a key that only this job's ranks share on this node, in all its rounds."""
    if identity.launcher == "torchrun":
        return f"torchrun-{_named_for_ever(agent_pid(environment))}"
    if identity.launcher == "slurm":
        return f"slurm-{environment.get('SLURM_JOB_ID')}-{environment.get('SLURM_STEP_ID')}"
    if identity.launcher == "environment":
        named = f"port-{environment.get('MASTER_PORT', '0')}-session-{os.getsid(0)}"
        # two node daemons may run on one machine, started from one terminal
        node = "" if identity.node_rank is None else f"-node-{identity.node_rank}"
        return f"{named}{node}-{which_machine()}"
    # the process from which Lightning starts, or will start, the other ranks
    child = identity.launcher == "lightning" and bool(identity.local_rank)
    starter = os.getppid() if child or spawned_as() is not None else os.getpid()
    return f"pid-{_named_for_ever(starter)}"


def start_key(environment: Mapping[str, str], identity: Identity) -> str:
    """Return a key that only the ranks of this start of the job share on this node.

    One session can have several starts: a launcher restarts failed ranks, or a script trains twice.
    """
    if identity.launcher == "torchrun":
        count = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return "-".join((key_of_nodes(environment, identity), count, *_attempt(environment)))
    started = node_key(environment, identity)
    spawned = spawned_as()
    if identity.launcher in ("none", "lightning") and spawned is not None:
        # children of ddp_spawn are numbered in order of their start (SpawnProcess-3): the number of
        # the first that was spawned with us tells one `fit` from the next
        number = spawned.rpartition("-")[2]
        first = int(number) - (identity.local_rank or 0) if number.isdecimal() else 0
        return f"{started}-spawn-{first}"
    return started if identity.round is None else f"{started}-{identity.round}"


def _attempt(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what differs between two starts on this node if all torchrun variables are equal.

    torchrun makes <its temporary folder>/<run id>_<random>/attempt_<n>/<local rank>/error.json anew
    for each start. If nodes came or went, <n> is the same, but the creation time differs.
    """
    error_file = Path(environment.get("TORCHELASTIC_ERROR_FILE", ""))
    try:
        made = error_file.parents[1].stat()
    except (IndexError, OSError):
        return error_file.parts[-4:-2]
    return (*error_file.parts[-4:-2], f"{made.st_ino:x}", f"{made.st_mtime_ns:x}")


def key_of_nodes(environment: Mapping[str, str], identity: Identity) -> str:
    """Return a key that all ranks of the job share on all nodes; other starts may share it.

    TORCHELASTIC_RESTART_COUNT is left out: it differs between nodes within one round.
    """
    if identity.launcher == "slurm":
        return start_key(environment, identity)
    parts = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "WORLD_SIZE")
    return "-".join((identity.launcher, *(environment.get(part, "0") for part in parts)))


def agent_pid(environment: Mapping[str, str]) -> int:
    """Return torchrun's process on this node: the first ancestor without the run id variable.

    It is our parent, unless a shell script is between (``torchrun --no-python wrapper.sh``).
    """
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    pid = os.getppid()
    for _ in range(MOST_WRAPPERS):
        stat = read_process_stat(pid)
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return pid
        if stat is None or f"TORCHELASTIC_RUN_ID={run}".encode() not in variables:
            return pid
        pid = stat.parent_pid
    return os.getppid()


def spawned_as() -> str | None:
    """Return our name in multiprocessing; None if multiprocessing did not start us."""
    # such a child has imported it already; importing it costs other processes 10 ms
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return None
    return str(process.current_process().name)


def _named_for_ever(pid: int) -> str:
    stat = read_process_stat(pid)
    return f"{pid}-{stat.started_ticks if stat else 0}"


def place_in(environment: Mapping[str, str]) -> NodePlace | None:
    """Read which node a rank is on; None if the node's number or the node count is unknown."""
    who = identify(environment)
    number, nnodes, served = who.node_rank, who.nodes, who.agent_store
    by_launcher = who.launcher in ("torchrun", "slurm") or nnodes > 1
    if not by_launcher or number is None or number >= nnodes:
        return None
    return NodePlace(
        number=number,
        nnodes=nnodes,
        host=who.store_host or "" if served else "",
        port=who.store_port or 0 if served else 0,
        ranks=who.local_world_size or 0,
        job=job_key(environment, who),
        first=who.first_host,
    )


def place_of_task(environment: Mapping[str, str]) -> NodePlace | None:
    """Read the place of a SLURM task that is a `hangcheck run`: it watches only its own ranks.

    If a step has several tasks per node, each counts as a node. None unless it is one of several.
    """
    who = identify(environment)
    tasks, nodes = who.world_size or 1, who.nodes
    if who.launcher != "slurm" or who.rank is None or tasks == 1:
        return None
    if tasks <= nodes:
        return place_in(environment)
    job, first = job_key(environment, who), who.first_host
    return NodePlace(number=who.rank, nnodes=tasks, ranks=1, job=job, machines=nodes, first=first)


def place_of(session: Session) -> NodePlace | None:
    """Return this node's place: the newest from a rank, else from the launcher's command.

    Only the command says where nodes meet. They must agree before any rank runs, and keep the place
    in later rounds, in which a rank's own store may be another store.
    """
    facts, first = session.facts, session.facts.node
    place = read_fact(session.place_file, NodePlace)
    if place is None:
        return first
    if first is None and facts.store[0]:
        host, port = facts.store
        return replace(place, host=host, port=port, job=facts.job or place.job)
    if first is None or first.machines:
        return first or place
    return replace(first, number=place.number, nnodes=place.nnodes, ranks=place.ranks)


def tell_place(session: Session, place: NodePlace) -> None:
    """Tell this node's sidecar which node it is on; a failure is logged once."""
    try:
        write_atomically(session.place_file, encode(place))
    except OSError as error:
        log.once("place", f"this node's sidecar is not told which node it is on: {error}")
