"""Finds who held up a job that is gone, from the flight records of its ranks. Pure.

A GPU runs its operations in order, so the *oldest open* operation of a rank shows where the rank
is. From there the waits are followed: a rank waits for members that have not entered its operation,
or are in an older operation of another group. The waits end at:

- a rank with nothing open: it is in its own code;
- a rank whose operation has ended on others: its GPU, driver or transport;
- an operation that all members have entered: the transport between them, and nobody is blamed;
- a rank without a dump: unknown.

An operation that a dump does not list may have ended. Numbers are compared only within one group.
Numbers of messages are compared only in groups of two members, where both ends count alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.frames import users_place
from lightning_hangcheck.judge.graph import Wait, WaitGraph
from lightning_hangcheck.judge.operations import still_open
from lightning_hangcheck.judge.postmortem_facts import LeftFinding, LogBook, collective
from lightning_hangcheck.judge.postmortem_logs import find_in_logs, who_differs
from lightning_hangcheck.judge.wording import name_ranks, short_place, verb
from lightning_hangcheck.model.evidence import Frame, Gap
from lightning_hangcheck.model.flight import FLIGHT_RECORD, SAME_SIZES, Message
from lightning_hangcheck.model.verdict import EvidenceItem, State

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.flight import CollectiveRecord, FlightRecord
    from lightning_hangcheck.model.slugs import Cause

Stand = Literal["open", "ended", "before", "unknown", "missing"]
"""A rank's state at an operation: in it, through it, before it, not in its record, or without a
record."""
STANDS_IN_WORDS: dict[Stand, str] = {
    "ended": "ended on",
    "before": "not entered by",
    "open": "entered, behind something older, by",
    "unknown": "not shown by the record of",
    "missing": "no dump of",
}
COMES_FROM_ONE = frozenset({"broadcast", "_broadcast_oop", "scatter"})
"""The source may end before any other rank has entered."""
GOES_TO_ONE = frozenset({"reduce", "_reduce_oop", "gather"})
"""All ranks but the destination may end before any other rank has entered."""
DEFAULT_GROUP = "default_pg"
NEAR = 1_000
"""Two counts of one thing in one incident differ by no more than this."""
MOST_FACTS = 12
KEEP_RECORDS = (
    "next time keep them: TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
    "TORCH_FR_DUMP_TEMP_FILE=/shared/INCIDENT/rank_ (before torch 2.9 "
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE), a folder of its own for each incident; or hangcheck run"
)
KEEP_CALLS = (
    "from torch 2.5 on dumps name the calls; TORCH_NCCL_TRACE_CPP_STACK=1 adds the C++ ones"
)


class Head(NamedTuple):
    """The oldest open operation or message of a rank.

    Attributes:
        seq: Number of the operation in the group; of a message, among this rank's messages there.
        peer: The other end of a message; None for an operation in which all members meet.
    """

    group: str
    seq: int
    op: str
    peer: int | None = None

    @property
    def short(self) -> str:
        """Return ``all_reduce #12``, or ``send``."""
        return self.op.partition(" ")[0] if self.peer is not None else f"{self.op} #{self.seq}"


class Meeting(Struct):
    """An operation or message in which ranks wait.

    Attributes:
        stands: What its other members did.
        absent: Members that have not entered it and have nothing else open.
        ended_on: Where it has ended, if that proves that every member had entered it.
    """

    head: Head
    members: tuple[int, ...]
    waiting: list[int]
    stands: dict[Stand, list[int]]
    absent: set[int]
    ended_on: list[int]

    @property
    def enders(self) -> list[int]:
        """The members that it waits for; if none is known to be late, those that are unknown."""
        due = self.of("before", "open") or self.of("missing", "unknown")
        return [] if self.ended_on else sorted(due)

    @property
    def is_ahead(self) -> bool:
        """Whether most members are absent: then those that entered may be ahead."""
        return 2 * len(self.absent) > len(self.members)

    def of(self, *stands: Stand) -> list[int]:
        """Return the members in these states."""
        return [rank for stand in stands for rank in self.stands.get(stand, ())]


class Records:
    """The records of all ranks, by rank and group, and the operations in which ranks wait.

    Attributes:
        through: Number up to which the operations of a group have ended on a rank.
        heads: The oldest open operation of each rank that has one.
        meetings: Operations first, then messages; those with most ranks first.
    """

    def __init__(self, flights: Mapping[int, FlightRecord]) -> None:
        self.flights = flights
        self.columns: dict[tuple[int, str], CollectiveRecord] = {}
        self.members: dict[str, tuple[int, ...]] = {}
        self.names: dict[str, str] = {}
        self.with_messages: set[str] = set()
        self.last_number: Counter[str] = Counter()
        self.through: dict[tuple[int, str], int] = {}
        self.heads: dict[int, Head] = {}
        knows: dict[str, list[int]] = defaultdict(list)
        for rank, flight in flights.items():
            for record in flight.groups:
                group = record.group
                self.columns[rank, group] = record
                ended = (entry.seq for entry in record.entries if entry.retired)
                self.through[rank, group] = max(record.last_completed, *ended, 0)
                self.names.setdefault(group, record.description)
                knows[group].append(rank)
                if record.ranks:
                    self.members.setdefault(group, record.ranks)
                if record.messages:
                    self.with_messages.add(group)
                if record.entries or record.messages:
                    self.last_number[group] = max(self.last_number[group], record.last_enqueued)
            for record, operation in reversed(still_open(flight)):
                if isinstance(operation, Message):
                    peer = rank + operation.away
                    op = f"send to rank {peer}" if operation.sends else f"recv from rank {peer}"
                    self.heads[rank] = Head(record.group, operation.seq, op, peer)
                elif operation.seq > self.through[rank, record.group]:
                    self.heads[rank] = Head(record.group, operation.seq, operation.op)
        for group, ranks in knows.items():  # if no record names members: who knows it
            self.members.setdefault(group, tuple(sorted(ranks)))
        self.meetings = self._meet()

    def _meet(self) -> list[Meeting]:
        together: dict[tuple[str, int, str], list[int]] = defaultdict(list)
        for rank, head in sorted(self.heads.items()):
            together[head.group, head.seq, "" if head.peer is None else head.op].append(rank)
        found = []
        doubtful: dict[int, list[Meeting]] = defaultdict(list)
        for waiting in together.values():
            head = self.heads[waiting[0]]
            stands = self._stands(head, set(waiting))
            ended = stands.get("ended", [])
            needed = 2 if head.op in COMES_FROM_ONE else 1
            proves = len(ended) >= needed and head.op not in GOES_TO_ONE
            proves &= not stands.get("before")
            idle = {rank for rank in stands.get("before", ()) if rank not in self.heads}
            ends = self.members[head.group]
            meeting = Meeting(head, ends, waiting, stands, idle, ended if proves else [])
            found.append(meeting)
            for rank in stands.get("unknown", ()) if not proves else ():
                if rank not in self.heads:
                    doubtful[rank].append(meeting)
        for rank, meetings in doubtful.items():
            # had it ended there, it would have ended on one of several waiting ranks
            if len({waiter for meeting in meetings for waiter in meeting.waiting}) > 1:
                for meeting in meetings:
                    meeting.absent.add(rank)
        return sorted(found, key=lambda each: (each.head.peer is not None, -len(each.waiting)))

    def _stands(self, head: Head, waiting: Collection[int]) -> dict[Stand, list[int]]:
        """Return the members in each state at an operation, without those that wait in it."""
        found: dict[Stand, list[int]] = defaultdict(list)
        if head.peer is None:
            for rank in self.members[head.group]:
                if rank not in waiting:
                    found[self._stand(rank, head.group, head.seq)].append(rank)
        elif (other := self.heads.get(head.peer)) is None:
            found[self._at_message(head.peer, head)].append(head.peer)
        elif other.group != head.group or other.peer not in waiting:
            found["open"].append(head.peer)
        return found

    def _stand(self, rank: int, group: str, seq: int) -> Stand:
        """Return the state of a rank at an operation."""
        if rank not in self.flights:
            return "missing"
        record = self.columns.get((rank, group))
        if record is None:
            return "unknown"
        of_messages = group in self.with_messages  # then the number may be that of a message
        if seq <= self.through[rank, group] and (record.entries or not of_messages):
            return "ended"  # operations of one group end in order
        if record.entries:
            if any(entry.seq == seq for entry in record.entries):
                return "open"
            return "before" if seq > record.newest else "ended"
        # a message records how many operations were entered before it
        late = seq > record.last_enqueued and (record.messages or not of_messages)
        return "before" if late else "unknown"

    def _at_message(self, peer: int, head: Head) -> Stand:
        """Return whether the other end of a message has posted fewer, by its count of messages."""
        if peer not in self.flights:
            return "missing"
        record = self.columns.get((peer, head.group))
        if record is None or record.entries or record.messages or len(self.members[head.group]) > 2:
            return "unknown"
        counts_messages = record.last_enqueued > self.last_number[head.group] + 1
        fewer = counts_messages and 0 < head.seq - record.last_enqueued <= NEAR
        return "before" if fewer else "unknown"

    def of(self, head: Head) -> str:
        """Return ``all_reduce #12 of group TP (ranks 0-3)``, or a message with its other end."""
        op = f"a {head.op}" if head.peer is not None else head.short
        return f"{op} of {self.name(head.group)}"

    def name(self, group: str) -> str:
        """Name a group for people, with its ranks: many groups of a mesh share one name."""
        called, members = self.names.get(group, ""), name_ranks(self.members[group])
        if called in (DEFAULT_GROUP, "") and group == "0":
            return "the default group"
        return f"group {called if called not in ('', 'undefined') else group} ({members})"

    def last_call(self, rank: int) -> Frame | None:
        """Return the user's line from which a rank called the last operation that it entered."""
        flight = self.flights[rank]
        called = [entry for group in flight.groups for entry in group.entries if entry.site]
        last = max(called, key=lambda entry: entry.recorded, default=None)
        return users_place(flight.call_of(last).frames) if last is not None else None


# What they prove: the first of these that has its evidence answers.


def mismatch(records: Records) -> LeftFinding | None:
    """At one number ranks are in different operations or sizes; who is wrong, by majority."""
    for meeting in records.meetings:
        head, ways = meeting.head, dict[int, str]()
        for rank in meeting.members if head.peer is None else ():
            record = records.columns.get((rank, head.group))
            entries = record.entries if record is not None else ()
            entry = next((one for one in reversed(entries) if one.seq == head.seq), None)
            if entry is None or head.seq <= records.through[rank, head.group]:
                continue
            ways[rank] = entry.op  # sizes of other operations differ by rank
            if entry.op in SAME_SIZES:  # shapes may differ if the count is equal
                sizes = " ".join(str(prod(size)) for size in entry.sizes)
                ways[rank] = " ".join(filter(None, (entry.op, f"[{sizes}]", *entry.dtypes[:1])))
        if len({ways[rank] for rank in meeting.waiting if rank in ways}) > 1:
            break
    else:
        return None
    odd, each = who_differs(ways, len(meeting.members))
    places = set(map(records.last_call, ways))
    apart = len(places) > 1 and None not in places
    cause: Cause = "rank_diverged" if apart else "collective_mismatch"
    where = f"#{head.seq} of {records.name(head.group)}"
    text = f"ranks meet with different operations under {where}{each}"
    found = _finding(cause, "made" if apart else None, 0.9 if odd else 0.8, text)
    table = defaultdict[str, list[int]](list)
    for rank, way in ways.items():
        table[way].append(rank)
    return replace(
        found,
        culprits=tuple(odd),
        certainty="majority" if odd else None,
        graph=WaitGraph(waiters=tuple(ways.keys() - odd) if odd else ()),
        collectives=(collective(head.group, head.seq, table, meeting.members),),
    )


def late_or_broken(records: Records) -> LeftFinding | None:
    """Few ranks have not come, or an operation is still open on ranks and has ended on others."""
    sentences, blamed, broken = [], set[int](), set[int]()
    for meeting in records.meetings:
        ranks = set() if meeting.is_ahead else meeting.absent - blamed  # each rank once
        if ranks:
            blamed |= ranks
            have, place = verb(ranks, "has", "have"), records.last_call(min(ranks))
            after = f" after its last call at {short_place(place)}" if place is not None else ""
            own = verb(ranks, "it is in its own code", "they are in their own code")
            sentences.append(
                f"{name_ranks(ranks)} {have} not entered {records.of(meeting.head)}, and {have} "
                f"nothing else open: {own}, or inside that call{after}"
            )
    alike: dict[str, list[Meeting]] = defaultdict(list)
    for meeting in records.meetings:
        if meeting.ended_on:
            alike[meeting.head.short].append(meeting)
    for short, meetings in alike.items():
        ranks = {rank for meeting in meetings for rank in meeting.waiting}
        broken |= ranks
        what = records.of(meetings[0].head) if len(meetings) == 1 else short
        on = name_ranks(rank for meeting in meetings for rank in meeting.ended_on)
        sentences.append(
            f"{what} is still open on {name_ranks(ranks)} and has ended on {on}: the GPU, driver "
            f"or link of {name_ranks(ranks)} did not finish it"
        )
    if not sentences:
        return None
    culprits, aspect = tuple(sorted(blamed | broken)), "not_entered" if blamed else "device"
    found = _finding("rank_stalled", aspect, 0.9, "; ".join(sentences))
    place = records.last_call(culprits[0])
    return replace(found, culprits=culprits, certainty="proven", place=place)


def no_transport(records: Records) -> LeftFinding | None:
    """All members have entered an operation, and it has ended on none."""
    together = [
        ({*each.waiting, *(() if each.head.peer is None else (each.head.peer,))}, each.head)
        for each in records.meetings
        if not any(each.stands.values())
    ]
    if not together:
        return None
    ranks, head = max(together, key=lambda pair: len(pair[0]))
    why, aspect = "the transport between them (network, NVLink, a GPU) does not move", "transport"
    if all(record.last_completed <= 0 for record in records.columns.values()):
        why = "no operation of the job ever ended: their GPUs cannot reach each other"
        aspect = "first_operation"
    text = (
        f"all of {name_ranks(ranks)} have entered {records.of(head)}, and it has ended on none: "
        f"{why}; no rank is at fault by its record"
    )
    return _finding("network_wait", aspect, 0.7, text)


def not_told(records: Records) -> LeftFinding | None:
    """Ranks wait for others that left no dump, or whose record does not tell."""
    unclear = {
        rank: meeting.head
        for meeting in reversed(records.meetings)
        for rank in meeting.of("missing", "unknown")
        if not meeting.ended_on
    }
    missing = [rank for rank in unclear if rank not in records.flights]
    ahead = [meeting for meeting in records.meetings if meeting.is_ahead]
    if ahead and not missing:
        most = max(ahead, key=lambda meeting: len(meeting.absent))
        few = name_ranks(most.waiting)
        text = (
            f"only {few} {verb(most.waiting, 'has', 'have')} entered {records.of(most.head)}; "
            f"{name_ranks(most.absent)} have not, and have nothing else open: who is at fault is "
            "not proven"
        )
        guess = f"{few} {verb(most.waiting, 'makes', 'make')} a call that others do not there"
        return _finding("rank_diverged", "made", 0.4, text, guess)
    if not unclear:
        return None
    whom = missing or [*unclear]
    who, guess = name_ranks(whom), ""
    why = f"no dump of {who} is here, so who is late is unknown"
    if not missing:
        why = f"the records of {who} do not tell whether it has ended there"
        guess = f"{who} did not come"
    every = [each for each in records.meetings if not set(whom).isdisjoint(each.enders)]
    waits = [rank for meeting in every for rank in meeting.waiting]
    where = f"in {records.of(unclear[min(whom)])}"
    text = f"{name_ranks(waits)} {verb(waits, 'waits', 'wait')} {where}; {why}"
    return _finding("unknown", "no_dump", 0.3, text, guess)


def circle(records: Records) -> LeftFinding:
    """Ranks wait for each other in several groups."""
    waits = "; ".join(
        f"{name_ranks(ranks)} {verb(ranks, 'waits', 'wait')} in {records.of(each.head)}"
        for each in records.meetings[:4]
        for ranks in [each.waiting]
    )
    text = f"ranks wait for each other in several groups: {waits}; nothing shows which of "
    return _finding("collective_mismatch", "order", 0.6, f"{text}them left the order of the others")


def _finding(
    cause: Cause, aspect: str | None, sure: float, text: str, guess: str = ""
) -> LeftFinding:
    evidence = (EvidenceItem("guess", None, f"a guess: {guess}"),) if guess else ()
    return LeftFinding(cause=cause, aspect=aspect, confidence=sure, sentence=text,
                       certainty="guess" if guess else None, evidence=evidence)  # fmt: skip


def find_in_records(flights: Mapping[int, FlightRecord], world_size: int) -> LeftFinding | None:
    """Return what the flight records of one incident prove; None if no operation was open."""
    records = Records(flights)
    if not records.heads:
        return None
    rules = (mismatch, late_or_broken, no_transport, not_told, circle)
    found = next(finding for rule in rules if (finding := rule(records)) is not None)
    enders = {rank: tuple(each.enders) for each in records.meetings for rank in each.waiting}
    enders |= dict.fromkeys(found.graph.waiters, found.culprits)
    waiters = tuple(
        rank for rank, whom in sorted(enders.items()) if whom and rank not in found.culprits
    )
    waits = (Wait((rank,), enders[rank], (f"in {records.heads[rank].short}",)) for rank in waiters)
    states: dict[int, State] = dict.fromkeys(flights, "running")
    states |= dict.fromkeys(records.heads, "waiting")
    states |= dict.fromkeys(found.culprits, "stalled")
    facts, rows, gaps = [], [], []
    for meeting in records.meetings:
        head, ranks = meeting.head, meeting.waiting
        text = f"{name_ranks(ranks)}: oldest open is {records.of(head)}"
        if head.peer is None:
            rows.append(collective(head.group, head.seq, {head.op: ranks}, meeting.members))
            for stand, words in STANDS_IN_WORDS.items():
                others = meeting.of(stand)
                text += f"; {words} {name_ranks(others)}" if others else ""
        facts.append(EvidenceItem("flight_record", None, text))
    if missing := set(range(world_size)) - flights.keys():
        why = "no dump of it is here: what it did is unknown, which is no guilt"
        whose = f"{FLIGHT_RECORD} of {name_ranks(missing)}"
        gaps.append(Gap(whose, None, why, "flight_record", KEEP_RECORDS))
    if found.culprits and not any(flight.sites for flight in flights.values()):
        why = "these dumps name no Python calls, so the line of code is unknown"
        gaps.append(Gap("calls of operations", None, why, "stack", KEEP_CALLS))
    return replace(
        found,
        graph=WaitGraph(waits=tuple(waits), waiters=waiters),
        states=states,
        collectives=(*found.collectives, *rows)[:MOST_FACTS],
        evidence=(*found.evidence, *facts)[:MOST_FACTS],
        gaps=tuple(gaps),
    )


def judge_left(case: Case) -> LeftFinding | None:
    """Explain a case that was read from files; None if the files show nothing wrong.

    A log that proves how a process ended explains more than what others waited for then. Otherwise
    flight records come first, as they have every operation.
    """
    flights = {view.rank: view.flight for view in case.ranks if view.flight is not None}
    by_records = find_in_records(flights, case.run.world_size)
    found = [by_records] if by_records is not None else []
    if case.left and (from_logs := find_in_logs(LogBook(case.left.logs))) is not None:
        if flights:  # the logs miss flight records, but these are here
            gaps = tuple(gap for gap in from_logs.gaps if gap.kind != "flight_record")
            from_logs = replace(from_logs, gaps=gaps)
        found.append(from_logs)
    order = {"hang": 1, "suspect": 2}
    found.sort(
        key=lambda each: (not each.culprits, order.get(each.kind, 0), each.cause == "unknown")
    )
    if len(found) < 2:
        return found[0] if found else None
    first, other = found
    agree = first.culprits == other.culprits or not other.culprits
    also = EvidenceItem("also" if agree else "other", None, other.sentence)
    ended = agree and other.kind != "hang"  # how a process ended is what the reader asks next
    return replace(
        first,
        sentence=f"{first.sentence}; {other.sentence}" if ended else first.sentence,
        evidence=(*first.evidence, also, *other.evidence)[: 2 * MOST_FACTS],
        gaps=tuple(dict.fromkeys((*first.gaps, *other.gaps))),
    )
