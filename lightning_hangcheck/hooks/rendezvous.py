"""A named rendezvous of ranks, before or without any process group, with a time limit.

Ranks leave messages at a place that all see: on one node a folder in shared memory, else a store
that torch serves already, else a folder of the run. The first rank collects the others and decides,
or a rank that gives up does. Each decision has one key, and only its first value counts. So every
rank continues, or every rank raises the same error. Nothing here loads torch before the script did.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed, UnreadableRun
from lightning_hangcheck.hooks.places import (
    LONGEST_PAUSE,
    SLICE,
    Start,
    StorePlace,
    notice_after,
    wait,
)
from lightning_hangcheck.identity import identify
from lightning_hangcheck.look.proc import has_ended, vitals
from lightning_hangcheck.model.codec import msgpack_decoder
from lightning_hangcheck.nodes.meeting_place import DecidingPlace, FolderPlace
from lightning_hangcheck.recorder.lifecycle import Recorder, current
from lightning_hangcheck.session.session import (
    SESSION_VARIABLE,
    Session,
    key_of_nodes,
    read_session,
    start_key,
)
from lightning_hangcheck.text.shown import format_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import Store

    from lightning_hangcheck.model.beat import Beat

LOOK_LIMIT = 4.0  # seconds for the stacks of missing ranks; py-spy needs about 10 ms for one
GRACE = LOOK_LIMIT + 4.0
"""Seconds that the others wait longer: a rank that looks for stacks decides only afterwards."""
MOST_RANKS, MOST_FRAMES = 8, 16  # shown for missing ranks
LONGEST_NAME = 100  # characters; Linux allows 255 bytes per file name, quoting and number included
_times_met: Counter[str] = Counter()
"""How often each name was met in this process: all ranks pass the guards in the same order."""
_of_starts: dict[tuple[int, str], Start] = {}
"""By process and place: an agreed start holds as long as this process lives."""


class PeerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks that meet at one place; ``index`` is this process's, and index 0 goes first."""

    # Until all exist (``peers_exist``), as under Lightning's own launchers before ``fit``, the
    # first must not wait. ``start`` is set if the place may hold messages of another start of the
    # job.

    place: DecidingPlace
    start: Start | None = None
    index: int
    size: int | None
    peers_exist: bool
    noun: str = "rank"
    session: Session | None = None


class ProcessGroup(NamedTuple):
    """A process group of several ranks, and its store, if this torch version shows it."""

    rank: int
    size: int
    store: Store | None


def default_process_group() -> ProcessGroup | None:
    """Return the default group's facts; None before `init_process_group`, or if its size is 1."""
    # No collective is called: a timeout would leave the user's group unusable.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = distributed.get_world_size()
    internals = sys.modules.get("torch.distributed.distributed_c10d")
    find_store = getattr(
        internals, "_get_default_store", lambda: None
    )  # private, torch 1.x to 2.13
    return ProcessGroup(distributed.get_rank(), size, find_store()) if size > 1 else None


def find_peer_group(recorder: Recorder, *, local: bool = False) -> PeerGroup | None:
    """Find whom this process meets, and where, anew at each guard."""
    # This follows from how the process was launched. torch's default process group is used if the
    # launcher named no ranks, or does not guarantee that all exist: Lightning starts them in
    # ``fit``, ``ddp_spawn`` and torch.multiprocessing from one process. None if there is nobody to
    # meet, or this process's rank is unknown; `MeetingFailed` if nodes share no place.
    if recorder.settings.disable:
        return None
    identity, group = identify(os.environ), default_process_group()
    of_group = group if not identity.peers_exist else None
    if of_group is not None and local and identity.local_rank is None:
        log.once("peers-local", "no local rank is known here: a local guard takes in all ranks")
        local = False
    nodes = identity.nodes
    index, size = identity.rank, identity.world_size
    if local:
        index = identity.local_rank or 0
        size = size if identity.launcher == "slurm" and nodes == 1 else identity.local_world_size
    elif of_group is not None:
        index, size = of_group.rank, of_group.size
    elif identity.launcher == "none":
        index = None if identity.node_rank else 0
    if index is None:
        log.once(
            "peers-rank",
            "guards are off here: nothing tells this process its global rank before fit; start the "
            "job with torchrun to have them",
        )
        return None
    session = recorder.session
    if session is None and SESSION_VARIABLE in os.environ:
        # a rank of ddp_spawn records only once Lightning sets its rank, but can meet before
        try:
            session = read_session(Path(os.environ[SESSION_VARIABLE]))
        except UnreadableRun as error:
            log.once("session", str(error))
    address, port = identity.store_host, identity.store_port
    agent = address if identity.agent_store and port else None
    over_nodes = nodes > 1 and of_group is None and not local
    store = group.store if group is not None and not local else None
    place: DecidingPlace
    start: Start | None = None
    if store is not None and (of_group is not None or (over_nodes and not agent)):
        place = StorePlace(store, "hangcheck", "the process group's store")
    elif over_nodes:
        # the store of torchrun's agent, or a shared folder, may outlive one start of the job
        key = key_of_nodes(os.environ, identity)
        where = f"{address}:{port}" if agent else recorder.settings.run_dir
        known = (os.getpid(), f"{where} {key}")
        if known not in _of_starts:
            if agent:
                place = StorePlace.of_agent(agent, port or 0, f"hangcheck/{key}")
            elif where:
                place = FolderPlace(Path(where).absolute() / "meet" / quote(key, safe=""))
            else:
                raise MeetingFailed(
                    f"the ranks cannot meet: they are spread over {nodes} nodes without a place "
                    "that all of them see",
                    "set HANGCHECK_RUN_DIR to a new folder for this run on storage that all nodes "
                    "share, or start the job with torchrun",
                )
            _of_starts[known] = Start(place)
        start = _of_starts[known]
        place = start.place
    elif session is not None:
        place = FolderPlace(session.meetings / quote(start_key(os.environ, identity), safe=""))
    else:
        why = "there is no session in shared memory; hangcheck run before the command opens one"
        log.once("peers-session", f"guards are off: {why}")
        return None
    return PeerGroup(
        place=place,
        start=start,
        index=index,
        size=size,
        peers_exist=of_group is not None or identity.peers_exist,
        noun="local rank" if local else "rank",
        session=session,
    )


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result for all ranks, good without ``failure``; ``payloads`` is what each brought."""

    failure: str = ""
    remedy: str = ""
    details: str = ""
    payloads: dict[int, bytes] = {}

    def unwrap(self) -> dict[int, bytes]:
        """Return the payloads, or raise `MeetingFailed`."""
        if self.failure:
            raise MeetingFailed(self.failure, self.remedy, self.details)
        return self.payloads


class RendezvousPoint:
    """One rendezvous: the n-th of its name in this start of the job."""

    def __init__(self, peers: PeerGroup, name: str, key: str, time_limit: float) -> None:
        self.peers, self.name, self.time_limit = peers, name, time_limit
        self._key, self._decision = key, f"{key}/decision"
        self._notice_at: float | None = time.monotonic() + notice_after(time_limit)

    @classmethod
    def next(cls, peers: PeerGroup, name: str, time_limit: float) -> RendezvousPoint:
        """Open the next rendezvous of this name; the first over nodes agrees on the start's name.

        In that first rendezvous the other ranks answer the start's name with random tokens. Each
        accepts only a decision that contains its token: an earlier start cannot know it.
        """
        start, own = peers.start, os.urandom(8).hex()
        if start is not None and not start.name:
            first = cls(peers, name, "start", time_limit)
            if peers.index == 0:
                peers.place.post("leader", own.encode())
                first._go_to(start, own)
                outcome = first.decide(first.collect(own.encode()))
            else:
                outcome = first._follow(start, own.encode())
            if outcome.failure:
                start.name = ""  # try again at the next guard
            outcome.unwrap()
        plain = quote(str(name), safe=" ")[:LONGEST_NAME]
        _times_met[plain] += 1
        below = f"{start.name}/" if start is not None else ""
        return cls(peers, name, f"{below}{peers.noun} {plain} {_times_met[plain]}", time_limit)

    def _go_to(self, start: Start, name: str) -> None:
        start.name, self._key, self._decision = name, f"{name}/start", f"{name}/start/decision"

    def _follow(self, start: Start, own: bytes) -> Outcome:
        deadline = time.monotonic() + self.time_limit + GRACE
        while (left := deadline - time.monotonic()) > 0:
            leader = (self.peers.place.look("leader") or b"").decode(errors="replace")
            if leader.isalnum() and leader != start.name:
                self._go_to(start, leader)
                self.arrive(own)
            value = start.name and self._wait(self._decision, min(left, SLICE), [0])
            outcome = msgpack_decoder(Outcome).decode(value) if value else Outcome()
            if outcome.payloads.get(self.peers.index) == own:
                return outcome
            time.sleep(LONGEST_PAUSE)
        return self._explain([0])

    def _arrival_of(self, index: int) -> str:
        return f"{self._key}/arrived-{index}"

    def arrive(self, payload: bytes) -> None:
        """Record that this rank has come, and what it brought."""
        self.peers.place.post(self._arrival_of(self.peers.index), b"+" + payload)

    def _has_come(self, index: int) -> bool:
        return self.peers.place.look(self._arrival_of(index)) is not None

    def _named(self, indices: Sequence[int]) -> str:
        return f"{self.peers.noun}{'s' if len(indices) > 1 else ''} {format_ranks(indices)}"

    def _missing(self) -> list[int]:
        """Return indices that have not come; index 0 if all have: it has not continued."""
        return [rank for rank in range(self.peers.size or 1) if not self._has_come(rank)] or [0]

    def _explain(self, indices: Sequence[int], did: str = "") -> Outcome:
        """Say which ranks did not come, and where they are, as far as that is visible."""
        peers, noun = self.peers, self.peers.noun
        of = f" of {peers.size}" if peers.size and not did else ""
        are = "they are" if len(indices) > 1 else "it is"
        found = look_for_missing(peers.session, indices, local=noun == "local rank")
        return Outcome(
            failure=f"{self._named(indices)}{of} {did or 'did not come to'} {self.name!r} within "
            f"{self.time_limit:g} s ({noun} {peers.index} waited at {peers.place.where})",
            remedy=f"see where {are} (py-spy dump --pid PID, or the verdict of hangcheck); if "
            f"{are} only slow, allow more time: timeout=... or HANGCHECK_MEETING_TIMEOUT=...",
            details="\n".join(f"  {noun} {index}: {lines}" for index, lines in found.items()),
        )

    def collect(self, payload: bytes) -> Outcome:
        """As the first rank, wait for each other rank in turn, however many there are."""
        payloads, peers = {0: payload}, self.peers
        if not peers.peers_exist:
            return Outcome(payloads=payloads)
        self.arrive(payload)
        deadline = time.monotonic() + self.time_limit
        for index in range(1, peers.size or 1):
            while index not in payloads:
                left = deadline - time.monotonic()
                value = self._wait(self._arrival_of(index), min(left, SLICE))
                if value is not None:
                    payloads[index] = value[1:]
                    continue
                given_up = peers.place.look(self._decision)  # by a rank that came much earlier
                if given_up is not None:
                    return msgpack_decoder(Outcome).decode(given_up)
                if left <= 0:
                    late = self._explain(self._missing())
                    return msgspec.structs.replace(late, payloads=payloads)
        return Outcome(payloads=payloads)

    def decide(self, outcome: Outcome) -> Outcome:
        """Publish the outcome; return the earlier outcome, if another rank was first."""
        # A place that cannot be written is no error if the others don't exist yet.
        word, peers = msgspec.msgpack.encode(outcome), self.peers
        try:
            return msgpack_decoder(Outcome).decode(peers.place.decide(self._decision, word))
        except MeetingFailed as error:
            if peers.peers_exist or peers.index:
                raise
            log.once("meeting-post", f"{error}. Ranks that start later will wait in vain")
            return outcome

    def await_outcome(self, did: str = "") -> Outcome:
        """As any rank but the first, wait for the outcome; if it is late, say why.

        That is what the first rank ``did`` not do, or that not all ranks came: for these the first
        rank waits the time limit, so the others wait longer.
        """
        awaited = [0] if did else None
        value = self._wait(self._decision, self.time_limit + (0.0 if did else GRACE), awaited)
        if value is None and any(map(self._has_come, range(1, self.peers.index))):
            # another rank inspects the first one; one look is enough
            value = self._wait(self._decision, GRACE, awaited)
        if value is None:
            return self.decide(self._explain(awaited or self._missing(), did))
        return msgpack_decoder(Outcome).decode(value)

    def _wait(self, key: str, seconds: float, awaited: Sequence[int] | None = None) -> bytes | None:
        """Wait for a key; in a long wait, ranks 0 and 1 say once for whom they wait."""
        deadline = time.monotonic() + seconds
        while True:
            until = min(deadline, self._notice_at or deadline)
            value = wait(self.peers.place, key, max(0.0, until - time.monotonic()))
            now, noun, index = time.monotonic(), self.peers.noun, self.peers.index
            if value is None and self._notice_at is not None and now >= self._notice_at:
                self._notice_at = None
                if index < 2:
                    for_whom = self._named(awaited or self._missing())
                    waits = f"{noun} {index} waits at {self.name!r} for {for_whom}"
                    log.once(self._key, f"{waits}, and gives up after {self.time_limit:g} s")
            elif value is not None or now >= deadline:
                return value


def join_rendezvous(
    name: str, time_limit: float, payload: bytes = b"", peers: PeerGroup | None = None
) -> dict[int, bytes]:
    """Wait until all ranks have reached the point of this name; return each rank's payload."""
    # Under Lightning's own launchers the first rank runs before the others exist: it does not wait,
    # and the others read what it left. Without peers, return this process's own payload, as rank 0.
    peers = peers or find_peer_group(current())
    if peers is None:
        return {0: payload}
    point = RendezvousPoint.next(peers, name, time_limit)
    if peers.index == 0:
        return point.decide(point.collect(payload)).unwrap()
    point.arrive(payload)
    return point.await_outcome().unwrap() | {peers.index: payload}


def look_for_missing(
    session: Session | None, indices: Sequence[int], *, local: bool
) -> dict[int, str]:
    """Look for ranks on this node: process and stack of each, or why it is missing; about 4 s."""
    # The waiting rank starts py-spy; if only the sidecar may (Yama), its verdict has the stack.
    shown = indices[:MOST_RANKS]
    if session is None:
        why = "no stack: the ranks have no session in common here; start the job with hangcheck run"
        return dict.fromkeys(shown, why)
    from lightning_hangcheck.judge.alike import shown_frames
    from lightning_hangcheck.look.stacks import python_stacks
    from lightning_hangcheck.observe.discovery import Pages, ProcessTree, find_ranks

    deadline = time.monotonic() + LOOK_LIMIT
    pages = Pages(session.pages)
    pages.find_new()
    beats = pages.read()
    pages.close()
    tree = ProcessTree(session.facts.root_pid, root_belongs=not session.facts.launched)
    processes: dict[int | None, tuple[int, Beat | None]] = {
        rank.local_rank if local else rank.rank: (rank.pid, None)
        for rank in find_ranks(tree.take(time.monotonic_ns()), beats, numbered=True)
    }
    # a page outlives its process: if a rank was restarted, the live process counts
    for pid, beat in sorted(beats.items(), key=lambda item: has_ended(item[0]), reverse=True):
        processes[beat.local_rank if local else beat.rank] = pid, beat

    def look(index: int) -> str:
        if index not in processes:
            return "no process of it is seen on this node"
        pid, beat = processes[index]
        signs = vitals(pid)
        if signs is None or has_ended(pid):
            said = f" ({beat.last_words})" if beat is not None and beat.last_words else ""
            return f"pid {pid} has ended{said}"
        who = f"pid {pid}{', which is stopped' if signs.state in 'Tt' else ''}"
        stack, gaps = python_stacks(pid, index, max(0.1, deadline - time.monotonic()))
        if stack is None:
            return f"{who}; no stack: {gaps[0].reason if gaps else 'unknown'}"
        frames = [str(frame) for frame in shown_frames(stack.threads[0].frames)]
        left_out = len(frames) - MOST_FRAMES
        if left_out > 0:
            frames = [f"... {left_out} outer calls", *frames[left_out:]]
        return "".join([f"{who}, main thread:", *(f"\n    {frame}" for frame in frames)])

    return {index: look(index) for index in shown}
