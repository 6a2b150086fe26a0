"""A named rendezvous of ranks, before any process group exists, with a time limit.

The first rank of a peer group collects the others and decides, or a rank that gives up does. Only
the first decision counts, so every rank goes on, or every rank raises the same error.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed, UnreadableRun
from lightning_hangcheck.hooks.guards import notice_after
from lightning_hangcheck.hooks.missing_ranks import (
    LOOK_LIMIT,
    answer_question,
    describe_missing,
    name_indices,
)
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.machine.which_machine import which_machine
from lightning_hangcheck.model.decoders import msgpack_decoder
from lightning_hangcheck.nodes.meeting_place import DecidingPlace, FolderPlace
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.session.job_key import key_of_nodes, start_key
from lightning_hangcheck.session.node_place import step_nodes
from lightning_hangcheck.session.session import SESSION_VARIABLE, Session, read_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed import Store

    from lightning_hangcheck.recorder.lifecycle import Recorder


STORE_TIMEOUT = 30.0  # seconds for one request; the agent's store answers in milliseconds


class StorePlace:
    """A store of torch, under a prefix of ours."""

    def __init__(self, store: Store, prefix: str, where: str) -> None:
        """Use a store that is connected.

        Args:
            store: The process group's, or torchrun's.
            prefix: Keeps our keys apart from torch's own, and one start of the job from the next.
            where: The store in words.
        """
        from torch.distributed import PrefixStore

        self._store = PrefixStore(prefix, store)
        self._where = where

    @classmethod
    def of_agent(
        cls, host: str, port: int, prefix: str, timeout: float = STORE_TIMEOUT
    ) -> StorePlace:
        """Connect to the store of torchrun's agent.

        Args:
            host: MASTER_ADDR.
            port: MASTER_PORT.
            prefix: As above.
            timeout: Seconds for the connection and for each request.

        Raises:
            MeetingFailed: The store cannot be reached.
        """
        from torch.distributed import TCPStore

        where = f"torchrun's store at {host}:{port}"
        try:
            store = TCPStore(
                host,
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout),
            )
        except RuntimeError as error:
            raise _lost(where, error) from error
        return cls(store, prefix, where)

    @property
    def where(self) -> str:
        """The store in words."""
        return self._where

    def post(self, key: str, value: bytes) -> None:
        """Set a key."""
        try:
            self._store.set(key, value)
        except RuntimeError as error:
            raise _lost(self._where, error) from error

    def decide(self, key: str, value: bytes) -> bytes:
        """Set a key unless it is set; return its value."""
        try:
            return bytes(self._store.compare_set(key, "", value))
        except RuntimeError as error:
            raise _lost(self._where, error) from error

    def look(self, key: str) -> bytes | None:
        """Read a key, if it is set."""
        return self.look_all([key])[0]

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read each key that is set: all at once where all are, as of nodes that have met."""
        store = self._store
        try:
            if len(keys) > 1 and store.has_extended_api() and store.check(list(keys)):
                return [bytes(value) for value in store.multi_get(list(keys))]
            return [bytes(store.get(key)) if store.check([key]) else None for key in keys]
        except RuntimeError as error:
            raise _lost(self._where, error) from error


def _lost(where: str, error: RuntimeError) -> MeetingFailed:
    return MeetingFailed(
        f"the ranks cannot meet: {where} does not answer ({str(error).splitlines()[0]})",
        "see whether the process that serves it still runs there, and whether a firewall is in "
        "between",
    )


LEADER = "leader"
LETTERS = 8
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.2  # seconds between two rounds of answers
END_LIMIT_S = 1.0
LATE_RANKS = "rank 0 is done, and waits for ranks that have not come to their first guard"

_starts: dict[str, Start] = {}
"""By the place: one agreement holds as long as this process lives."""


class Start:
    """What this process knows of the start that it belongs to.

    Args:
        place: Where all starts of the job meet.
        index: Of this rank; 0 names the start.
        size: How many ranks there are.

    Attributes:
        name: Of the start; empty until the first rank has answered.
    """

    def __init__(self, place: DecidingPlace, index: int, size: int) -> None:
        self._index, self._own = index, os.urandom(LETTERS).hex()
        self.name = self._own if index == 0 else ""
        self._said_hello = False
        self._expected_until = 0.0
        self._closing = threading.Event()
        if index == 0:
            place.post(LEADER, self._own.encode())
            self._answering = threading.Thread(
                target=self._answer, args=(place, size), name="hangcheck-start", daemon=True
            )
            self._answering.start()
            atexit.register(self.leave)

    def agree(self, place: DecidingPlace) -> bool:
        """Ask once whether the first rank has come and knows us; True from then on."""
        if self.name:
            return True
        if not self._said_hello:
            place.post(f"hello-{self._index}", self._own.encode())
            self._said_hello = True
        leader = (place.look(LEADER) or b"").decode(errors="replace")
        known = place.look(f"{leader}/known-{self._index}") if leader.isalnum() else None
        if known == self._own.encode():
            place.post(f"{leader}/agreed-{self._index}", b"1")
            self.name = leader
        return bool(self.name)

    def expect(self, limit_s: float) -> None:
        """Take down that the others are waited for, by whatever guard, for so long from now on."""
        self._expected_until = max(self._expected_until, time.monotonic() + limit_s)

    def leave(self) -> None:
        """At the first rank's end, wait for those that nobody else could answer.

        No longer than a guard does, and not where the rank fails: its launcher will end them all.
        """
        limit_s = max(0.0, self._expected_until - time.monotonic())
        if getattr(sys, "last_value", None) is None and limit_s:
            silent_s = notice_after(limit_s)
            self._answering.join(silent_s)
            if self._answering.is_alive():
                left_s = limit_s - silent_s
                log.once("late-ranks", f"{LATE_RANKS}, for {left_s:.0f} s at most")
                self._answering.join(left_s)
        self.close()

    def close(self) -> None:
        """Answer nobody any more: no thread of ours may be in torch when the interpreter ends."""
        self._closing.set()
        self._answering.join(END_LIMIT_S)

    def _answer(self, place: DecidingPlace, size: int) -> None:
        """Give each rank its word back, also one of an earlier start: nobody listens there."""
        told: dict[int, bytes] = {}
        left, pause = set(range(1, size)), FIRST_PAUSE
        try:
            while left and not self._closing.wait(pause):
                began = time.monotonic()
                for index in sorted(left):
                    hello = place.look(f"hello-{index}")
                    if hello is not None and hello != told.get(index):
                        place.post(f"{self.name}/known-{index}", hello)
                        told[index] = hello
                left -= {n for n in told if place.look(f"{self.name}/agreed-{n}") is not None}
                pause = min(2 * pause, LONGEST_PAUSE) + time.monotonic() - began
        except MeetingFailed as error:
            log.once("same-start", f"ranks that come later to a guard wait in vain: {error}")


class PlaceOfStart:
    """A place as the ranks of one start see it: nothing of earlier starts is there.

    What another rank than the first leaves before it was answered is passed on then.

    Args:
        place: Where all starts meet.
        start: This one.
    """

    def __init__(self, place: DecidingPlace, start: Start) -> None:
        self._place, self.start = place, start
        self._kept: dict[str, bytes] = {}

    @property
    def where(self) -> str:
        """The place in words."""
        return self._place.where

    @property
    def agreed(self) -> bool:
        """Whether the first rank has come, and answered."""
        return bool(self.start.name)

    def post(self, key: str, value: bytes) -> None:
        """Leave a value, for the ranks of this start."""
        self._kept[key] = value
        self._pass_on()

    def decide(self, key: str, value: bytes) -> bytes:
        """Hold to the first word of this start; to one's own where the first rank has not come."""
        if self._pass_on():
            return self._place.decide(f"{self.start.name}/{key}", value)
        return self._kept.setdefault(key, value)

    def look(self, key: str) -> bytes | None:
        """Return what ranks of this start left."""
        if not self._pass_on():
            return self._kept.get(key)
        return self._place.look(f"{self.start.name}/{key}")

    def _pass_on(self) -> bool:
        """Leave what was kept, once this rank is known; at a meeting each key has one word."""
        if not self.start.agree(self._place):
            return False
        while self._kept:
            key, value = self._kept.popitem()
            self._place.decide(f"{self.start.name}/{key}", value)
        return True


def of_this_start(place: DecidingPlace, index: int, size: int) -> PlaceOfStart:
    """Return the place as the ranks of this process's start of the job see it.

    Args:
        place: Where all starts meet; another object with the same words is the same place.
        index: Of this rank.
        size: How many there are.
    """
    start = _starts.get(place.where)
    if start is None:
        start = _starts[place.where] = Start(place, index, size)
    return PlaceOfStart(place, start)


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


LONGEST_NAME = 100  # of a file; Linux allows 255 bytes, quoting and number included

_times_met: Counter[str] = Counter()
"""How often each name was met in this process: ranks walk the same guards in the same order."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a rendezvous, for all ranks: the first rank says it, or one that gave up.

    Attributes:
        failure: What went wrong, in one clause; empty if all went well.
        remedy: The way out, in one clause.
        details: Where the ranks stand that were waited for, in lines.
        payloads: What each rank brought, by its index.
    """

    failure: str = ""
    remedy: str = ""
    details: str = ""
    payloads: dict[int, bytes] = {}

    def unwrap(self) -> dict[int, bytes]:
        """Return the payloads.

        Raises:
            MeetingFailed: The outcome is a failure.
        """
        if self.failure:
            raise MeetingFailed(self.failure, self.remedy, self.details)
        return self.payloads


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank leaves when it comes.

    Attributes:
        node: Where it runs: ranks of one node see each other's processes.
        payload: What it brings for the others.
    """

    node: str
    payload: bytes = b""


class RendezvousPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One rendezvous: the n-th of its name in this start of the job."""

    peers: PeerGroup
    name: str
    key: str
    time_limit: float

    def arrival_of(self, index: int) -> str:
        """Key under which a rank leaves what it brought."""
        return f"{self.key}/arrived-{index}"

    def stacks_by(self, index: int) -> str:
        """Key under which a rank leaves the stacks that it was asked for."""
        return f"{self.key}/stacks-by-{index}"

    @property
    def outcome(self) -> str:
        """Key of the one outcome: the first to be left there holds for every rank."""
        return f"{self.key}/outcome"

    @property
    def wanted(self) -> str:
        """Key under which the first rank asks others for stacks that it cannot take."""
        return f"{self.key}/stacks-wanted"

    def missing(self) -> list[int]:
        """Indices that have not come; the first, where all have: it has not gone on.

        Before the first has come, nobody knows which of the others are of the same start.
        """
        everyone, place = range(self.peers.size or 1), self.peers.place
        if isinstance(place, PlaceOfStart) and not place.agreed:
            return [0]
        return [index for index in everyone if place.look(self.arrival_of(index)) is None] or [0]


def next_point(peers: PeerGroup, name: str, time_limit: float) -> RendezvousPoint:
    """Open the next rendezvous of this name.

    Args:
        peers: Who meets.
        name: The same on all ranks, at most about 100 characters.
        time_limit: Seconds that each rank waits at most.
    """
    plain = quote(name, safe=" ")[:LONGEST_NAME]
    _times_met[plain] += 1
    if isinstance(peers.place, PlaceOfStart):
        peers.place.start.expect(time_limit)
    key = f"{peers.noun} {plain} {_times_met[plain]}"
    return RendezvousPoint(peers=peers, name=name, key=key, time_limit=time_limit)


# Seconds that the others wait longer, so that the first rank's verdict reaches them: it looks for
# stacks on its own node, and asks other nodes.
GRACE = 2 * LOOK_LIMIT + 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # seconds between two looks


class BoundedWait:
    """How long a rank waits at a point, and what it says of that meanwhile.

    Args:
        point: Where.
        awaited: Whom it waits for, in words; asked when it is said.
        limit: Seconds.
    """

    def __init__(self, point: RendezvousPoint, awaited: Callable[[], str], limit: float) -> None:
        now = time.monotonic()
        self._point = point
        self._awaited = awaited
        self._notice_at = now + notice_after(point.time_limit)
        self.deadline = now + limit

    def remind(self) -> None:
        """Say once what is waited for, when it takes long; the first two ranks speak for all."""
        point = self._point
        if time.monotonic() < self._notice_at or point.peers.index > 1:
            return
        self._notice_at = self.deadline
        log.once(
            point.key,
            f"{point.peers.noun} {point.peers.index} waits at {point.name!r} for "
            f"{self._awaited()}, and gives up after {point.time_limit:g} s",
        )


def join_rendezvous(
    name: str, time_limit: float, payload: bytes = b"", peers: PeerGroup | None = None
) -> dict[int, bytes]:
    """Wait until all ranks have come to the point of this name.

    Under Lightning's own launchers the first rank runs before the others exist: it does not wait,
    and the others read what it left.

    Args:
        name: The same on all ranks; may be met any number of times.
        time_limit: Seconds that a rank waits; all but the first wait `GRACE` longer, for its word.
        payload: What this rank brings.
        peers: Who meets; by default all ranks of the job.

    Returns:
        What each rank brought, by rank. Without anybody to meet, only this rank's own, as rank 0.

    Raises:
        MeetingFailed: Ranks did not come in time: which, where they stand, and after how long.
    """
    peers = peers or find_peer_group(current())
    if peers is None:
        return {0: payload}
    point = next_point(peers, name, time_limit)
    if peers.index == 0:
        return _lead(point, payload)
    post_arrival(point, payload)
    return await_outcome(point, partial(describe_missing, point), GRACE).unwrap()


def post_arrival(point: RendezvousPoint, payload: bytes) -> None:
    """Leave word that this rank has come.

    Args:
        point: Where to.
        payload: What it brings.
    """
    session = point.peers.session
    node = f"{which_machine()}:{session.path if session is not None else ''}"
    arrival = Arrival(node=node, payload=payload)
    point.peers.place.post(point.arrival_of(point.peers.index), msgspec.msgpack.encode(arrival))


def wait(place: DecidingPlace, keys: Sequence[str], bound: BoundedWait) -> tuple[str, bytes] | None:
    """Wait until one of the keys is posted. The diagnosis knows a rank in a guard by this frame.

    Args:
        place: Where to look.
        keys: The first that is found counts.
        bound: How long.

    Returns:
        The key and its value; None after the deadline.
    """
    pause = FIRST_PAUSE
    while True:
        for key in keys:
            value = place.look(key)
            if value is not None:
                return key, value
        left = bound.deadline - time.monotonic()
        if left <= 0:
            return None
        bound.remind()
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def decide(point: RendezvousPoint, outcome: Outcome) -> Outcome:
    """Say what became of the rendezvous; return what stands, if another rank was first.

    Raises:
        MeetingFailed: The place cannot be written while others wait for it. Where they don't exist
            yet, that is said once instead: a single process has nobody to meet.
    """
    try:
        stands = point.peers.place.decide(point.outcome, msgspec.msgpack.encode(outcome))
    except MeetingFailed as error:
        if point.peers.peers_exist or point.peers.index:
            raise
        log.once("meeting-post", f"{error}. Ranks that start later will wait in vain")
        return outcome
    return msgpack_decoder(Outcome).decode(stands)


def await_outcome(
    point: RendezvousPoint, explain_missing: Callable[[], Outcome], grace: float = 0.0
) -> Outcome:
    """Wait for the outcome, as any rank but the first; give up if it is late.

    Args:
        point: The rendezvous.
        explain_missing: Called when the time is over; what it returns holds for the others too,
            unless there is an outcome by then.
        grace: Seconds beyond the point's time limit, where the first rank has that limit itself.
    """
    bound = BoundedWait(point, partial(_awaited, point, grace), point.time_limit + grace)
    outcome = _wait_for_outcome(point, bound, asked=grace > 0)
    if outcome is None and not _is_first_to_wait(point):
        # another rank looks where the first one stands; one look is enough
        outcome = _wait_for_outcome(
            point, BoundedWait(point, partial(_awaited, point, grace), GRACE)
        )
    return decide(point, explain_missing()) if outcome is None else outcome


def _wait_for_outcome(
    point: RendezvousPoint, bound: BoundedWait, *, asked: bool = False
) -> Outcome | None:
    keys = [point.outcome, *([point.wanted] if asked else [])]
    found = wait(point.peers.place, keys, bound)
    if found is not None and found[0] == point.wanted:
        answer_question(point, found[1])
        return _wait_for_outcome(point, bound)
    return None if found is None else msgpack_decoder(Outcome).decode(found[1])


def _is_first_to_wait(point: RendezvousPoint) -> bool:
    """Whether this is the first of those that wait for the first rank, as far as they left word."""
    earlier = range(1, point.peers.index)
    return all(point.peers.place.look(point.arrival_of(index)) is None for index in earlier)


def _awaited(point: RendezvousPoint, grace: float) -> str:
    return name_indices(point, point.missing() if grace else [0])


def _lead(point: RendezvousPoint, payload: bytes) -> dict[int, bytes]:
    return decide(point, _collect(point, payload)).unwrap()


def _collect(point: RendezvousPoint, payload: bytes) -> Outcome:
    """Wait for each rank in turn: one look at a time, however many ranks there are."""
    payloads = {0: payload}
    if not point.peers.peers_exist:
        return Outcome(payloads=payloads)
    post_arrival(point, payload)
    place = point.peers.place
    bound = BoundedWait(point, partial(_awaited, point, GRACE), point.time_limit)
    for index in range(1, point.peers.size or 1):
        found = wait(place, (point.outcome, point.arrival_of(index)), bound)
        if found is None:
            return describe_missing(point)
        key, value = found
        if key == point.outcome:
            return msgpack_decoder(Outcome).decode(value)
        payloads[index] = msgpack_decoder(Arrival).decode(value).payload
    return Outcome(payloads=payloads)
