"""Which operations each rank has entered and not completed, and for whom it therefore waits.

One table: by group and number, the operation of each rank from torch's flight record, and messages
between two ranks by their own counts. Without a record, the rank's frames tell. An operation
started with ``async_op=True`` leaves no frame of torch: a rank waits for it only at a line that
asks for its end, or in torch's own code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.alike import root_of
from lightning_hangcheck.judge.frames import COLLECTIVE, Wait, rules_of, waits_for_ranks
from lightning_hangcheck.judge.processes import NEWEST, read_process
from lightning_hangcheck.model.code_owner import is_ours, owner_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import (
    NOT_NOTED,
    SAME_SIZES,
    CollectiveEntry,
    Message,
    MessageCounts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.judge.job import JobReading, RankReading  # noqa: TC004 - it is above
    from lightning_hangcheck.model.case import CodeNote, RankView
    from lightning_hangcheck.model.flight import CallSite, CollectiveRecord, FlightRecord

    Views = Mapping[int, RankView]
    OpenOperation = tuple[CollectiveRecord, CollectiveEntry]

MESSAGES = ("isend", "irecv")
PAIRED = frozenset({"send", "recv", *MESSAGES, "batch_isend_irecv"})
"""Operations between two ranks; torch's flight record has none of gloo's."""
MAKING_GROUP = "new_group"
"""Waits for keys of the store, not for an operation."""
UNRECORDED = PAIRED | {MAKING_GROUP, "monitored_barrier"}
"""What torch's flight record never has."""
FROM_ONE = ("broadcast", "scatter")
"""Receivers in these wait for the root; for other ranks only if these hand it on."""
NOT_FOR_ALL = frozenset({*FROM_ONE, "reduce", "gather"})
"""Operations that may end on a rank though some members have not come."""
COLLECTIVE_CODE = re.compile(r"(^|/)torch/(distributed/|autograd/|_tensor\.py)")
"""Below frames of these files, a rank is on its way into the operation itself."""


class AllOf(tuple[int, ...]):
    """Ranks that are all needed to end a wait; of any other tuple one may suffice."""

    __slots__ = ()


class Operation(Struct, frozen=True):
    """What must be equal where ranks meet: the operation, and for some the input's sizes.

    Attributes:
        detail: Root and reduction; empty if not noted.
    """

    name: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        sizes = " ".join(str(list(size)) for size in self.sizes)
        parts = (self.name, sizes, self.dtypes[0] if self.dtypes else "", self.detail)
        return " ".join(filter(None, parts))


class Step(Struct, frozen=True):
    """An operation of one rank, and the frames that called it, if noted."""

    operation: Operation
    called_from: tuple[Frame, ...] = ()


class History(Struct, frozen=True, eq=False):
    """A rank's column of the table for one group: newest steps by number, and those still open."""

    steps: dict[int, Step]
    open: frozenset[int]
    newest: int

    def has_ended(self, seq: int) -> bool:
        """Whether the rank has completed this number."""
        return seq <= self.newest and seq not in self.open


class PendingCollective(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """A rank that waits in a collective; equal only to itself.

    Attributes:
        group: Name of the process group; None if the operation is not recorded.
        seq: The operation's number in the group.
        source: The root that sends, of a broadcast or scatter with a noted root.
        way: Frames by which ranks are compared: those where it stands, or that led to an earlier
            operation; empty if unknown.
    """

    reading: RankReading
    operation: Operation
    group: str | None = None
    seq: int | None = None
    source: int | None = None
    way: tuple[Frame, ...] = ()

    @property
    def numbered(self) -> tuple[str, int] | None:
        """Group and number; None where the operation is not recorded."""
        return None if self.group is None or self.seq is None else (self.group, self.seq)

    @property
    def rank(self) -> int:
        """Its global rank."""
        return self.reading.rank


# What a rank's record shows.


def groups_of(view: RankView) -> tuple[CollectiveRecord, ...]:
    """Return a rank's process groups, as far as recorded."""
    return view.flight.groups if view.flight is not None else ()


def record_of(reading: RankReading, group: str) -> CollectiveRecord | None:
    """Return what a rank knows of a group."""
    return next((record for record in groups_of(reading.view) if record.group == group), None)


def call_of(reading: RankReading, entry: CollectiveEntry) -> CallSite:
    """Return the place from which a rank called an operation; an empty one if not noted."""
    flight = reading.view.flight
    return flight.call_of(entry) if flight is not None else NOT_NOTED


def operation_of(reading: RankReading, entry: CollectiveEntry) -> Operation:
    """Return the part of an entry that must be equal on all ranks."""
    call = call_of(reading, entry)
    detail = " ".join(filter(None, (call.root, call.reduction)))
    if entry.op in SAME_SIZES:
        return Operation(entry.op, entry.sizes, entry.dtypes, detail)
    return Operation(entry.op, detail=detail)


def entered(reading: RankReading) -> list[tuple[str, CollectiveEntry]]:
    """Return the (group name, entry) of all that a rank entered, oldest first."""
    every = (
        (record.group, entry) for record in groups_of(reading.view) for entry in record.entries
    )
    return sorted(every, key=lambda pair: pair[1].created_ns)


def histories(waiting: Sequence[PendingCollective]) -> dict[str, dict[PendingCollective, History]]:
    """Return the table for each group in which a rank waits; equal records share one history."""
    found: dict[str, dict[PendingCollective, History]] = {
        pending.group: {} for pending in waiting if pending.group is not None
    }
    known: dict[tuple[int, ...], History] = {}
    for pending in waiting:
        reading = pending.reading
        for record in groups_of(reading.view):
            if record.group not in found:
                continue
            sites = reading.view.flight.sites if reading.view.flight is not None else {}
            counts = record.last_enqueued, record.last_completed
            key = id(record.entries), id(sites), *counts
            if key not in known:
                steps = {
                    entry.seq: Step(
                        operation_of(reading, entry), way_in(call_of(reading, entry).frames)
                    )
                    for entry in record.entries
                }
                still = (entry.seq for entry in record.entries if not record.has_ended(entry))
                known[key] = History(steps, frozenset(still), record.newest)
            found[record.group][pending] = known[key]
    return found


def way_in(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames above torch's collective code, without this package's.

    Call sites that a rank noted have no frames of torch, and are compared with stacks.
    """
    end = next(
        (at for at, frame in enumerate(frames) if is_collective_code(frame.file)), len(frames)
    )
    return tuple(frame for frame in frames[:end] if not is_ours(frame.file))


def ways_of(waiting: Iterable[PendingCollective]) -> set[tuple[Frame, ...]]:
    """Return the different frames that led ranks to their operations."""
    return set({id(pending.way): pending.way for pending in waiting}.values())


def is_collective_code(file: str) -> bool:
    """Whether a file is torch's own code on the way into an operation."""
    return COLLECTIVE_CODE.search(file) is not None


def still_open(
    flight: FlightRecord | None,
) -> list[tuple[CollectiveRecord, CollectiveEntry | Message]]:
    """Return what a rank has entered and not completed, oldest first; its device is at that."""
    found: list[tuple[CollectiveRecord, CollectiveEntry | Message]] = []
    for record in flight.groups if flight is not None else ():
        found += [(record, entry) for entry in record.entries if not entry.retired]
        found += [(record, message) for message in record.messages if not message.retired]
    return sorted(found, key=lambda pair: (pair[1].recorded, pair[1].created_ns))


def open_operation(view: RankView, *, of_main: bool = True) -> OpenOperation | None:
    """Return a rank's oldest operation that has not completed, with its group; or None."""
    return next(_open_operations(view, of_main=of_main), None)


def _open_operations(view: RankView, *, of_main: bool) -> Iterator[OpenOperation]:
    """Yield a rank's operations that have not completed, oldest first, each with its group.

    The main thread waits for what it or autograd's thread (which runs no Python) entered, not for
    what another Python thread did, such as a checkpoint's barrier. With ``of_main`` false, only the
    latter.
    """
    helpers = helper_threads(view)
    for record, operation in still_open(view.flight):
        if isinstance(operation, CollectiveEntry) and (
            operation.thread == 0 or (operation.thread in helpers) is not of_main
        ):
            yield record, operation


def entered_by(view: RankView, thread: int) -> OpenOperation | None:
    """Return the newest operation that a thread entered and that has not completed, or None."""
    found = (
        (record, operation)
        for record, operation in reversed(still_open(view.flight))
        if isinstance(operation, CollectiveEntry) and operation.thread == thread != 0
    )
    return next(found, None)


def helper_threads(view: RankView) -> frozenset[int]:
    """Return Python's ids of a rank's threads other than the main one and autograd's."""
    own = view.own_process
    return frozenset(
        thread.ident
        for sample in (own.samples if own is not None else ())
        for thread in (sample.stack.threads[1:] if sample.stack is not None else ())
        if thread.ident and thread.frames
    )


# Messages: torch matches them in order, so of two ranks the one with fewer posts is behind.


def awaited_peers(ranks: Views, waiter: RankView, name: str) -> tuple[int, ...]:
    """Return the peers of messages that a rank has posted, and that have posted fewer.

    The ranks' own counts tell; without counts, the open messages of torch's NCCL record. The name
    of the operation tells whether sends, receives or both count.
    """
    own = _counts(waiter)
    if own is None:
        still = unmatched_messages(ranks, waiter)
        kinds = (message for message in still if ("recv" if message.sends else "send") not in name)
        return tuple(sorted({waiter.rank + message.away for message in kinds}))
    asked = () if "send" in name else own.asked()
    sent = () if "recv" in name else own.sends()
    posted = [(peer, often, MessageCounts.sent_to) for peer, often in asked]
    posted += [(peer, often, MessageCounts.asked_of) for peer, often in sent]
    late = {
        peer
        for peer, often, of_theirs in posted
        if (theirs := _counts(ranks.get(peer))) is not None
        and of_theirs(theirs, waiter.rank) < often
    }
    return tuple(sorted(late)) or _queued_behind(ranks, waiter, name)


def newest_peers(view: RankView) -> tuple[int, ...]:
    """Return the other end of the newest message of each thread."""
    counts = _counts(view)
    newest = counts.newest if counts is not None else ()
    return tuple(abs(thread[-1]) - 1 + counts.moved for thread in newest if counts and thread)


def _queued_behind(ranks: Views, waiter: RankView, name: str) -> tuple[int, ...]:
    """Return the peer of a rank's oldest open message if the peer's device has not reached it.

    A device works in order, and ranks post ahead of it: the answer may have been posted behind
    something that does not end.
    """
    first = next(iter(_open_messages(waiter)), None)
    if first is None or ("recv" if first.sends else "send") in name:
        return ()
    peer = ranks.get(waiter.rank + first.away)
    messages = _open_messages(peer) if peer is not None else []
    if peer is None or not messages:
        return ()
    operation, wanted = open_operation(peer), (-first.away, not first.sends)
    begun = [messages[0].created_ns, *([operation[1].created_ns] if operation is not None else [])]
    answers = (
        message.created_ns for message in messages if (message.away, message.sends) == wanted
    )
    answered = next(answers, None)
    return (peer.rank,) if answered is not None and min(begun) < answered else ()


def _open_messages(view: RankView) -> list[Message]:
    return [operation for _, operation in still_open(view.flight) if isinstance(operation, Message)]


def unmatched_messages(ranks: Views, waiter: RankView) -> Iterator[Message]:
    """Yield a rank's open messages whose peer has posted none to it that is open.

    Both ends of a message end at about one time, so a peer with none open has not come. A peer with
    an open one may have ended others before this rank's record was read: nothing is concluded then.
    """
    for record in groups_of(waiter):
        for sent in record.messages:
            peer = ranks.get(waiter.rank + sent.away)
            if not sent.retired and peer is not None and peer.flight is not None:
                theirs = (there for there in peer.flight.groups if there.group == record.group)
                posted = (message for there in theirs for message in there.messages)
                if not any(two.away == -sent.away and not two.retired for two in posted):
                    yield sent


def _counts(view: RankView | None) -> MessageCounts | None:
    return view.flight.messages if view is not None and view.flight is not None else None


def _open_message(ranks: Views, view: RankView) -> str:
    """Name the oldest send or receive that waits for its other end; empty if none does."""
    oldest = _open_messages(view)[:1]
    kinds = MESSAGES if all(message.sends for message in oldest) else reversed(MESSAGES)
    return next((kind for kind in kinds if awaited_peers(ranks, view, kind)), "")


# Operations that no frame of torch shows.


def asked_end(
    code: Sequence[CodeNote], ranks: Views, view: RankView, frames: Sequence[Frame]
) -> Wait | None:
    """Return the operation, started earlier, whose end an idle rank asks for; or None.

    The rank stands in torch's own code but in no known wait, or at a line that asks for such an
    end. Or torch alone may call it back.
    """
    here = {(frame.file, frame.line) for frame in frames[-1:]}
    asks = any(owner_of(file).package == "torch" for file, _ in here)
    asks = asks or any(note.awaits and (note.file, note.line) in here for note in code)
    if not asks and (view.own_process is None or not read_process(view.own_process).left_alone):
        return None
    found = open_operation(view)
    name = found[1].op if found is not None else _open_message(ranks, view)
    return Wait("collective", name, frames[-1]) if name else None


def at_device(view: RankView) -> Frame | None:
    """Return the line at which a busy rank may wait for its device; or None.

    By default CUDA waits by spinning (cudaDeviceScheduleSpin if cores are free), long after the
    collective that does not end. Such a rank is at this line in all samples, in a C call that gave
    up the interpreter lock, and has a group whose operations run on its device.
    """
    own = view.own_process
    if own is None or not any(group.on_device for group in groups_of(view)):
        return None
    main = read_process(own).in_one_call()
    return main.frames[-1] if main is not None and main.frames else None


def helper_waits(view: RankView) -> bool:
    """Whether another thread than the main one waits for ranks, maybe in what is open."""
    own = view.own_process
    stacks = (sample.stack for sample in (own.samples[-NEWEST:] if own is not None else ()))
    helpers = (thread for stack in stacks if stack is not None for thread in stack.threads[1:])
    return any(waits_for_ranks(thread.frames) for thread in helpers)


def device_wait(view: RankView) -> Wait | None:
    """Return the operation in which a busy rank's device waits; None if that is not seen."""
    found, line = open_operation(view), at_device(view)
    if found is None or not found[0].on_device or line is None:
        return None
    untold = found[1].thread == 0 and helper_waits(view)
    return None if untold else Wait("device", found[1].op, line)


def behind_helper(ranks: Views, view: RankView) -> Wait | None:
    """Return a helper thread's older operation that blocks a rank's device; or None.

    Threads share the device's default stream. If all ranks have entered the main thread's operation
    and it does not end, the device has not reached it.
    """
    found, older = open_operation(view), open_operation(view, of_main=False)
    if view.flight is None or found is None or older is None:
        return None
    (record, entry), (_, first) = found, older
    frames = view.flight.call_of(first).frames
    queued = record.on_device and older[0].on_device and first.created_ns < entry.created_ns
    if not frames or not queued or not all_came(ranks, record, entry.seq):
        return None
    return Wait("device", first.op, frames[-1])


def is_behind_helper(reading: RankReading) -> bool:
    """Whether its device is blocked by a call of another thread than the main one."""
    wait = reading.wait
    return wait is not None and wait.kind == "device" and wait.frame not in reading.frames


def is_behind(ranks: Views, view: RankView) -> bool:
    """Whether a rank has no operation open, and has not entered one that is open on another."""
    newest = {record.group: record.newest for record in groups_of(view)}
    if not newest or still_open(view.flight):
        return False
    return any(
        view.rank in record.ranks
        and any(
            not entry.retired and entry.seq > newest.get(record.group, entry.seq)
            for entry in record.entries
        )
        for other in ranks.values()
        for record in groups_of(other)
    )


def all_came(ranks: Views, record: CollectiveRecord, seq: int) -> bool:
    """Whether the records of all members of a group show that they entered this operation."""
    return all(
        any(
            own.group == record.group and own.newest >= seq
            for own in (groups_of(ranks[rank]) if rank in ranks else ())
        )
        for rank in record.ranks or ranks
    )


def device_message(ranks: Views, view: RankView) -> Wait | None:
    """Return the message for which a busy rank's device waits; or None.

    The ranks' own counts tell, if any: NCCL's record never ends the messages of a batch. If an
    operation is open, too, only an older message counts.
    """
    line = at_device(view)
    name = _open_message(ranks, view) if line is not None else ""
    if line is None or not name or helper_waits(view):
        return None
    found, messages = open_operation(view), [*unmatched_messages(ranks, view)]
    awaited = awaited_peers(ranks, view, name)
    messages += [
        message for message in _open_messages(view)[:1] if view.rank + message.away in awaited
    ]
    if found is not None and not any(
        message.created_ns < found[1].created_ns for message in messages
    ):
        return None
    return Wait("device", name, line)


# Where each rank waits, and for whom.


def pending_collectives(job: JobReading) -> dict[int, PendingCollective]:
    """Return the collective in which each rank waits, in that rank's own group."""
    found: dict[int, PendingCollective] = {}
    known: dict[tuple[int, int], PendingCollective | None] = {}
    for reading in job.waiting_in(COLLECTIVE):
        key = reading.representative, id(reading.wait)
        if key not in known:
            known[key] = pending_collective(reading)
        pending = known[key]
        if pending is None or pending.reading is reading:
            found.update({} if pending is None else {reading.rank: pending})
            continue
        theirs, own = groups_of(pending.reading.view), groups_of(reading.view)
        group, source = pending.group, pending.source
        at = next((at for at, record in enumerate(theirs) if record.group == group), None)
        if at is not None and theirs is not own and len(theirs) == len(own):
            group = own[at].group
            if source is not None:
                members = own[at].ranks
                source = source + members[0] - theirs[at].ranks[0] if members else None
        found[reading.rank] = replace(pending, reading=reading, group=group, source=source)
    return found


def pending_collective(reading: RankReading) -> PendingCollective | None:
    """Return the collective that a rank waits in, or None; messages do not count.

    On a device it is the oldest open operation that the waiting thread can have entered, as all
    others are queued behind it. Without one, a thread inside a call is in its newest operation of
    that name: older ones were started before, with ``async_op=True``. For which of these a line
    waits is unknown if they are of several groups.
    """
    wait = reading.wait
    if wait is None or reading.wait_kind not in COLLECTIVE or reading.activity != "waiting":
        return None
    of_main = wait.frame in reading.frames
    here = reading.frames if of_main else reading.stuck_frames  # of the thread that is in it
    here = () if reading.wait_kind == "device" else here
    unrecorded = PendingCollective(reading=reading, operation=Operation(wait.name), way=here)
    if wait.name == MAKING_GROUP:
        unused = tuple(record.ranks for record in groups_of(reading.view) if not record.entries)
        return replace(unrecorded, operation=Operation(wait.name, unused[-1:]))
    found = open_operation(reading.view, of_main=of_main) if wait.name not in PAIRED else None
    if found is None and wait.kind == "backward":
        # the hook of its reducer gave the gradients to another thread
        found = open_operation(reading.view, of_main=False)
    if found is None:
        return unrecorded
    if wait.kind == "collective" and not found[0].on_device:
        own = [*_open_operations(reading.view, of_main=of_main)]
        in_call = any(rule.wait for rule in rules_of(wait.frame))
        named = [each for each in own if in_call and each[1].op == wait.name]
        if not named and len({record.group for record, _ in own}) > 1:
            return unrecorded
        found = named[-1] if named else found
    record, entry = found
    call = call_of(reading, entry)
    return PendingCollective(
        reading=reading,
        operation=Operation(entry.op, entry.sizes, entry.dtypes),
        group=record.group,
        seq=entry.seq,
        source=root_of(call) if entry.op in FROM_ONE else None,
        way=here or call.frames,
    )


def still_pending(pending: Mapping[int, PendingCollective]) -> tuple[PendingCollective, ...]:
    """Return those of `pending_collectives` whose process does not move."""
    return tuple(
        collective
        for collective in pending.values()
        if collective.reading.process_activity.activity != "moving"
    )


def awaited_ranks(
    job: JobReading, pending: Mapping[int, PendingCollective]
) -> dict[int, tuple[int, ...]]:
    """Return, for each rank that waits in a collective, the ranks that it waits for, ascending.

    These are members of the group that have not entered its operation, by its number, or whose
    devices have not reached it; of a message the other end, by how many each has posted. If neither
    is recorded, all ranks that are in no collective and share a group in which this rank has called
    one from the same line, or from any line. Equal results are the same tuple object; `AllOf` these
    ranks, if a record shows that each is needed.
    """
    outside = tuple(rank for rank in job.ranks if rank not in pending)
    present = tuple(rank for rank in outside if job.ranks[rank].activity != "gone")
    away, views = frozenset(outside), job.views
    known: dict[object, tuple[int, ...]] = {(): going_on(job, outside)}

    def not_come(collective: PendingCollective, group: str, seq: int) -> tuple[int, ...]:
        """Return members that have not entered it; if all have, or unknown, those that are away.

        Of a broadcast only the source, if it has not entered: what the others do changes nothing.
        """
        record = record_of(collective.reading, group)
        named = set(record.ranks) if record is not None else set()

        def owes(rank: int) -> bool:
            own = record_of(job.ranks[rank], group)
            if own is not None:
                return own.newest < seq
            return rank in away or (views[rank].flight is not None and rank in named)

        def is_before(rank: int) -> bool:
            """Whether its device has the operation queued behind something else."""
            own, other = record_of(job.ranks[rank], group), pending.get(rank)
            if other is None or other.numbered == (group, seq) or own is None or not own.on_device:
                return False
            return any(entry.seq == seq and not entry.retired for entry in own.entries)

        members = sorted((named or set(job.ranks)) & job.ranks.keys())
        owing = tuple(filter(owes, members))
        if collective.source in owing:
            return AllOf((collective.source,))
        if owing and named and collective.operation.name not in NOT_FOR_ALL:
            return AllOf(owing)
        return owing or tuple(rank for rank in members if rank in away or is_before(rank))

    called: dict[int, list[int]] = {}
    found: dict[int, tuple[int, ...]] = {}
    for rank, collective in pending.items():
        reading, every = collective.reading, groups_of(collective.reading.view)
        if collective.numbered is not None:
            if collective.numbered not in known:
                known[collective.numbered] = not_come(collective, *collective.numbered)
            found[rank] = known[collective.numbered]
        elif collective.operation.name in PAIRED:
            peers = awaited_peers(views, reading.view, collective.operation.name)
            found[rank] = peers or present or outside  # if no peer is known, any may send
        else:
            if reading.representative not in called:
                way, used = way_in(reading.frames), [at for at, o in enumerate(every) if o.entries]
                called[reading.representative] = [
                    at
                    for at in used
                    if any(way_in(call_of(reading, e).frames) == way for e in every[at].entries)
                ] or used
            groups = [every[at].ranks for at in called[reading.representative] if at < len(every)]
            key = tuple(map(id, groups)) if all(groups) else ()
            if key not in known:
                may_meet = frozenset().union(*groups)
                known[key] = going_on(job, tuple(rank for rank in outside if rank in may_meet))
            found[rank] = known[key]
    return found


def going_on(job: JobReading, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out ranks that ended well, if any other is left: their groups may not go on."""
    exits = ((rank, job.ranks[rank].view.process_exit) for rank in ranks)
    return tuple(rank for rank, end in exits if end is None or end.exit_code != 0) or ranks


def waiting_together(
    awaited: Mapping[int, tuple[int, ...]],
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Group the waiting ranks by whom they wait for.

    A hundred thousand ranks share one tuple, which is read once.
    """
    waiters: dict[int, list[int]] = {}
    found: dict[tuple[tuple[int, ...], bool], list[int]] = {}
    for rank, others in awaited.items():
        if others:
            if id(others) not in waiters:
                waiters[id(others)] = found.setdefault((others, isinstance(others, AllOf)), [])
            waiters[id(others)].append(rank)
    return [(ranks, others) for (others, _), ranks in found.items()]
