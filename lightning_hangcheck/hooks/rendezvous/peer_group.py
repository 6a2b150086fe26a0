"""Who meets whom, and where: decided anew at each guard.

It follows from how this process was launched and, once that exists, from what torch's default
process group says of the ranks. Never loads torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed, UnreadableRun
from lightning_hangcheck.hooks.rendezvous.places import StorePlace
from lightning_hangcheck.hooks.rendezvous.same_start import of_this_start
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.nodes.meeting_place import DecidingPlace, FolderPlace
from lightning_hangcheck.session.job_key import key_of_nodes, start_key
from lightning_hangcheck.session.node_place import step_nodes
from lightning_hangcheck.session.session import SESSION_VARIABLE, Session, read_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed import Store

    from lightning_hangcheck.recorder.lifecycle import Recorder


class PeerGroup(Struct, frozen=True, kw_only=True):
    """The ranks that meet at one place.

    Attributes:
        index: Position of this process; 0 goes first.
        size: How many there are; None where nothing says it yet.
        peers_exist: A launcher has started them all, so the first may wait for the others. Under
            Lightning's own launchers the first runs alone until ``fit``, and must not wait.
        noun: What an index is: ``rank``, or ``local rank`` in a peer group of one node.
        session: Of this node, where the others can be found; None where there is none.
    """

    place: DecidingPlace
    index: int
    size: int | None
    peers_exist: bool
    noun: str = "rank"
    session: Session | None = None


def find_peer_group(recorder: Recorder, *, local: bool = False) -> PeerGroup | None:
    """Find the peer group of this process.

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
    identity, group = identify(os.environ), default_process_group()
    if group is not None and not identity.peers_exist:
        return _peers_of_process_group(recorder, identity, group, local=local)
    index = _index(identity, local=local)
    if index is None:
        log.once(
            "peers-rank",
            "guards are off here: nothing tells this process its global rank before fit; start the "
            "job with torchrun to have them",
        )
        return None
    place = _place(recorder, identity, group, local=local)
    if place is None:
        return None
    return PeerGroup(
        place=place,
        index=index,
        size=_local_size(identity) if local else identity.world_size,
        peers_exist=identity.peers_exist,
        noun="local rank" if local else "rank",
        session=recorder.session or _inherited_session(),
    )


class ProcessGroup(NamedTuple):
    """A process group of several ranks that this process is in.

    Attributes:
        store: Through which they found each other; None where this torch does not show it.
    """

    rank: int
    size: int
    store: Store | None


def default_process_group() -> ProcessGroup | None:
    """Return the default group's facts; None before `init_process_group`, and for a group of one.

    No collective is called: one that timed out would leave the user's group unusable.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = distributed.get_world_size()
    if size < 2:
        return None
    internals = sys.modules.get("torch.distributed.distributed_c10d")
    find_store = getattr(internals, "_get_default_store", None)  # private, torch 1.x to 2.13
    store = find_store() if find_store is not None else None
    return ProcessGroup(distributed.get_rank(), size, store)


def _peers_of_process_group(
    recorder: Recorder, identity: Identity, group: ProcessGroup, *, local: bool
) -> PeerGroup | None:
    """The ranks of a process group whose launcher told them nothing, or not that all exist.

    Lightning starts them in ``fit``, ``ddp_spawn`` and torch.multiprocessing from one process.
    """
    if local and identity.local_rank is None:
        log.once("peers-local", "no local rank is known here: a local guard takes in all ranks")
    local = local and identity.local_rank is not None
    place = _place(recorder, identity, group, local=local)
    if place is None:
        return None
    return PeerGroup(
        place=place,
        index=(identity.local_rank or 0) if local else group.rank,
        size=_local_size(identity) if local else group.size,
        peers_exist=True,
        noun="local rank" if local else "rank",
        session=recorder.session or _inherited_session(),
    )


def _index(identity: Identity, *, local: bool) -> int | None:
    if local:
        return identity.local_rank or 0
    if identity.launcher == "none":
        return None if identity.node_rank else 0
    return identity.rank


def _place(
    recorder: Recorder, identity: Identity, group: ProcessGroup | None, *, local: bool
) -> DecidingPlace | None:
    """Where to meet: the group's own store, where no launcher says that all are on this node."""
    if group is not None and group.store is not None and not local and not identity.peers_exist:
        return _place_of_group(group.store)
    nodes = 1 if local else _nodes(os.environ, identity)
    if nodes > 1:
        return _place_of_nodes(recorder, identity, group, nodes)
    session = recorder.session or _inherited_session()
    if session is None:
        log.once("peers-session", "guards are off: there is no session in shared memory")
        return None
    return FolderPlace(session.meetings / quote(start_key(os.environ, identity), safe=""))


def _place_of_group(store: Store) -> DecidingPlace:
    return StorePlace(store, "hangcheck", "the process group's store")


def _place_of_nodes(
    recorder: Recorder, identity: Identity, group: ProcessGroup | None, nodes: int
) -> DecidingPlace:
    """The store of torchrun's agent, and a shared folder, may outlive one start of the job."""
    address, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    who = identity.rank or 0, identity.world_size or 1
    key = key_of_nodes(os.environ, identity)
    if agent_serves and address and port.isdecimal():
        store = StorePlace.of_agent(address, int(port), f"hangcheck/{key}")
        return of_this_start(store, *who)
    if group is not None and group.store is not None:
        return _place_of_group(group.store)
    if recorder.settings.run_dir:
        folder = Path(recorder.settings.run_dir).absolute() / "meet" / quote(key, safe="")
        return of_this_start(FolderPlace(folder), *who)
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
    return step_nodes(environment) if identity.launcher == "slurm" else identity.nodes


def _local_size(identity: Identity) -> int | None:
    alone = identity.launcher == "slurm" and _nodes(os.environ, identity) == 1
    return identity.world_size if alone else identity.local_world_size
