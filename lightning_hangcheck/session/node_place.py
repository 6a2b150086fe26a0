"""Which of the job's nodes is this one? By what its launcher set in a process's environment.

    torchrun     GROUP_RANK, GROUP_WORLD_SIZE; its agent's store at MASTER_ADDR:MASTER_PORT
    srun         SLURM_NODEID, SLURM_STEP_NUM_NODES
    any other    NODE_RANK, with WORLD_SIZE and LOCAL_WORLD_SIZE (Ray Train sets them in its actors)

A launcher's command may say it before any rank runs; what it leaves open, a rank of this node tells
the sidecar through the session, as soon as it knows: torchrun's agents learn their number from each
other only, and Ray sets its variables long after the process has started.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.atomic import write_atomically
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.files.owned_file import read_owned
from lightning_hangcheck.identity import identify
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.session.job_key import job_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.session.session import Session


MOST_ALONE = 2
"""Nodes that a launcher must show before its other variables say which of them this is."""


def place_in(environment: Mapping[str, str]) -> NodePlace | None:
    """Read which node a rank is on.

    Args:
        environment: Of the rank.

    Returns:
        None where nothing says which node of how many this is. A job of several nodes may go on
        with one.
    """
    who = identify(environment)
    number, nnodes, host = who.node_rank, who.nodes, ""
    if who.launcher == "torchrun":
        number = _number(environment, "GROUP_RANK")
        nnodes = _number(environment, "GROUP_WORLD_SIZE") or 0
        if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            host = environment.get("MASTER_ADDR", "")
    elif who.launcher == "slurm":
        nnodes = step_nodes(environment)
    elif nnodes < MOST_ALONE:
        return None
    if number is None or number >= nnodes:
        return None
    return NodePlace(
        number=number,
        nnodes=nnodes,
        host=host,
        port=(who.store_port or 0) if host else 0,
        ranks=who.local_world_size or 0,
        job=job_key(environment, who),
        first=who.store_host or first_host(environment),
    )


def place_of_task(environment: Mapping[str, str]) -> NodePlace | None:
    """Read the place of a SLURM task that is a `hangcheck run`: it watches its own ranks only.

    Where a step has several tasks on a node, each counts as a node.

    Args:
        environment: Of the task.

    Returns:
        None for the only task of its step, and for what is no task.
    """
    who = identify(environment)
    tasks, nodes = who.world_size or 1, step_nodes(environment)
    if who.launcher != "slurm" or who.rank is None or tasks == 1:
        return None
    if tasks <= nodes:
        return place_in(environment)
    job = job_key(environment, who)
    first = who.store_host or first_host(environment)
    return NodePlace(number=who.rank, nnodes=tasks, ranks=1, job=job, machines=nodes, first=first)


def step_nodes(environment: Mapping[str, str]) -> int:
    """Return how many nodes a SLURM step has, at least 1.

    Args:
        environment: Of one of its tasks.
    """
    names = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")
    return next(filter(None, (_number(environment, name) for name in names)), 1)


def first_host(environment: Mapping[str, str]) -> str:
    """Return the first host of a SLURM step: ``node[007-012,20],gpu3`` begins with ``node007``.

    Args:
        environment: Of one of its tasks.

    Returns:
        Empty where no list is there, or it is of another form.
    """
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    hosts = next((environment[name] for name in names if name in environment), "")
    found = re.match(r"([\w.-]+)(?:\[(\d+)[\d,-]*\]([\w.-]*))?(?:,|$)", hosts, re.ASCII)
    return "".join(part or "" for part in found.groups()) if found is not None else ""


def place_of(session: Session) -> NodePlace | None:
    """Return this node's place: as a rank told it last, else as the launcher's command says it.

    Where nodes meet is told by the command, if at all: they must agree before any rank runs, and
    in a later round, in which a rank's own store may be another one, on the same place.
    """
    facts, first = session.facts, session.facts.node
    try:
        told = decode(read_owned(session.place_file), NodePlace, str(session.place_file))
    except (OSError, UnreadableRun):
        return first
    if first is None and facts.store[0]:
        host, port = facts.store
        return replace(told, host=host, port=port, job=facts.job or told.job)
    if first is None or first.machines:
        return first or told
    return replace(first, number=told.number, nnodes=told.nnodes, ranks=told.ranks)


def tell_place(session: Session, place: NodePlace) -> None:
    """Tell this node's sidecar which node it is on.

    Raises:
        OSError: The session is gone.
    """
    write_atomically(session.place_file, encode(place))


class PlaceTeller:
    """Tells the sidecar which node this is, once a rank's environment says so.

    Args:
        session: Of the rank.
        environment: Of the rank; read again and again until it says so.
    """

    def __init__(self, session: Session, environment: Mapping[str, str]) -> None:
        self._session = session
        self._environment = environment
        self._told = False

    def look(self) -> None:
        """Look once: 20 microseconds until it is told; the first rank of a node tells it.

        Raises:
            OSError: The session is gone.
        """
        if self._told or self._environment.get("LOCAL_RANK", "0") != "0":
            return
        place = place_in(self._environment)
        if place is not None:
            self._told = True
            tell_place(self._session, place)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None
