"""Who meets whom, and where: decided anew at each guard, from how this process was launched."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed, UnreadableRun
from lightning_hangcheck.hooks.meeting_places import FolderPlace, MeetingPlace, StorePlace
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.rundir.process_stat import read_process_stat
from lightning_hangcheck.rundir.session import SESSION_VARIABLE, Session, read_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.recorder.recording import Recorder


class Circle(Struct, frozen=True, kw_only=True):
    """The ranks that share a meeting point.

    Attributes:
        index: Position of this process; 0 goes first.
        size: How many there are; None where nothing says it yet.
        peers_exist: A launcher has started them all, so the first may wait for the others. Under
            Lightning's own launchers the first runs alone until ``fit``, and must not wait.
        noun: What an index is: ``rank``, or ``local rank`` in a circle of one node.
    """

    place: MeetingPlace
    index: int
    size: int | None
    peers_exist: bool
    noun: str = "rank"


def find_circle(recorder: Recorder, *, local: bool = False) -> Circle | None:
    """Find this process' circle.

    Args:
        recorder: Gives the session, and with it a folder that the ranks of this node share.
        local: The ranks of this node instead of all ranks.

    Returns:
        None where there is nobody to meet or no way to: everything is switched off, or this process
        cannot know which rank it is; the latter is said once.

    Raises:
        MeetingFailed: The ranks are spread over nodes that share no place.
    """
    if recorder.settings.disable:
        return None
    identity = identify(os.environ)
    index = _index(identity, local=local)
    if index is None:
        log.once(
            "circle-rank",
            "guards are off here: nothing tells this process its global rank before fit; start the "
            "job with torchrun to have them",
        )
        return None
    place = _place(recorder, identity, local=local)
    if place is None:
        return None
    return Circle(
        place=place,
        index=index,
        size=_local_size(identity) if local else identity.world_size,
        peers_exist=identity.peers_exist,
        noun="local rank" if local else "rank",
    )


def _index(identity: Identity, *, local: bool) -> int | None:
    if local:
        return identity.local_rank or 0
    if identity.launcher == "none":
        return None if identity.node_rank else 0
    return identity.rank


def _place(recorder: Recorder, identity: Identity, *, local: bool) -> MeetingPlace | None:
    start = quote(start_key(os.environ, identity), safe="")
    nodes = 1 if local else _nodes(os.environ, identity)
    if nodes > 1:
        return _place_of_nodes(recorder, start, nodes)
    session = recorder.session or _inherited_session()
    if session is None:
        log.once("circle-session", "guards are off: there is no session in shared memory")
        return None
    return FolderPlace(session.meetings / start)


def _place_of_nodes(recorder: Recorder, start: str, nodes: int) -> MeetingPlace:
    address, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if agent_serves and address and port.isdecimal():
        return StorePlace(address, int(port), f"hangcheck/{_shared_key(os.environ)}")
    if recorder.settings.run_dir:
        return FolderPlace(Path(recorder.settings.run_dir).absolute() / "meet" / start)
    raise MeetingFailed(
        f"the ranks cannot meet: they are spread over {nodes} nodes without a place that all of "
        "them see",
        "set HANGCHECK_RUN_DIR to a new folder for this run on storage that all nodes share, or "
        "start the job with torchrun",
    )


def _inherited_session() -> Session | None:
    """A rank of ``ddp_spawn`` records only once Lightning tells its rank, but can meet before."""
    named = os.environ.get(SESSION_VARIABLE)
    try:
        return read_session(Path(named)) if named else None
    except UnreadableRun as error:
        log.once("session", str(error))
        return None


def _nodes(environment: Mapping[str, str], identity: Identity) -> int:
    """How many nodes the ranks are spread over, as far as the launcher tells; at least 1."""
    if identity.launcher == "slurm":
        text = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES") or "1"
        return int(text) if text.isdecimal() else 1
    size, here = identity.world_size, identity.local_world_size
    return -(-size // here) if identity.peers_exist and size and here else 1


def _local_size(identity: Identity) -> int | None:
    alone = identity.launcher == "slurm" and _nodes(os.environ, identity) == 1
    return identity.world_size if alone else identity.local_world_size


def start_key(environment: Mapping[str, str], identity: Identity) -> str:
    """A key that the ranks of this start of the job share on this node, and no other start has.

    One session can see several: a launcher that restarts failed ranks, a script that trains twice.
    """
    if identity.launcher == "torchrun":
        # <agent's temporary folder>/<run id>_<random>/attempt_<n>/<local rank>/error.json: the one
        # variable that differs between two starts even where all else is left at its default
        error_file = Path(environment.get("TORCHELASTIC_ERROR_FILE", ""))
        return "-".join((_shared_key(environment), *error_file.parts[-4:-2]))
    if identity.launcher == "slurm":
        parts = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return "slurm-" + "-".join(environment.get(part, "0") for part in parts)
    if identity.launcher == "environment":
        return f"port-{environment.get('MASTER_PORT', '0')}-session-{os.getsid(0)}"
    return _plain_start_key(identity)


def _shared_key(environment: Mapping[str, str]) -> str:
    """What torchrun tells the ranks of all nodes alike."""
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
