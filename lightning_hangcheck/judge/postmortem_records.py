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

from msgspec.structs import replace

from lightning_hangcheck.judge.frames import users_place
from lightning_hangcheck.judge.graph import Wait, WaitGraph
from lightning_hangcheck.judge.operations import still_open
from lightning_hangcheck.judge.postmortem_facts import LeftFinding, LogBook, collective
from lightning_hangcheck.judge.postmortem_logs import find_in_logs
from lightning_hangcheck.judge.wording import name_ranks, short_place, verb
from lightning_hangcheck.model.evidence import Frame, Gap
from lightning_hangcheck.model.flight import FLIGHT_RECORD, SAME_SIZES, Message
from lightning_hangcheck.model.verdict import EvidenceItem, State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.flight import (
        CollectiveEntry,
        CollectiveRecord,
        FlightRecord,
    )
    from lightning_hangcheck.model.slugs import Cause

Absent = tuple["Head", set[int], set[int]]
"""An operation, who waits in it, and who has not entered it and has nothing else open."""
Stand = Literal["open", "ended", "before", "unknown", "missing"]
"""A rank's state at an operation: in it, through it, before it, not in its record, or without a
record."""
STANDS_IN_WORDS: dict[Stand, str] = {
    "ended": "ended on",
    "before": "not entered by",
    "open": "entered, behind something older, by",
    "unknown": "not told by the record of",
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


class Board:
    """The records of all ranks as one table, by rank and group."""

    def __init__(self, flights: Mapping[int, FlightRecord]) -> None:
        self.flights = flights
        self.columns: dict[tuple[int, str], CollectiveRecord] = {}
        self.entries: dict[tuple[int, str], dict[int, CollectiveEntry]] = {}
        self.members: dict[str, tuple[int, ...]] = {}
        self.names: dict[str, str] = {}
        self.with_messages: set[str] = set()
        self.last_number: Counter[str] = Counter()
        self.through: dict[tuple[int, str], int] = {}
        self.heads: dict[int, Head] = {}
        knows: dict[str, list[int]] = defaultdict(list)
        for rank, flight in flights.items():
            for record in flight.groups:
                self.columns[rank, record.group] = record
                self.entries[rank, record.group] = {entry.seq: entry for entry in record.entries}
                ended = (entry.seq for entry in record.entries if entry.retired)
                self.through[rank, record.group] = max(record.last_completed, *ended, 0)
                self.names.setdefault(record.group, record.description)
                knows[record.group].append(rank)
                if record.ranks:
                    self.members.setdefault(record.group, record.ranks)
                if record.messages:
                    self.with_messages.add(record.group)
                if record.entries or record.messages:
                    number = max(self.last_number[record.group], record.last_enqueued)
                    self.last_number[record.group] = number
            for record, operation in reversed(still_open(flight)):
                if isinstance(operation, Message):
                    peer = rank + operation.away
                    op = f"send to rank {peer}" if operation.sends else f"recv from rank {peer}"
                    self.heads[rank] = Head(record.group, operation.seq, op, peer)
                elif operation.seq > self.through[rank, record.group]:
                    self.heads[rank] = Head(record.group, operation.seq, operation.op)
        for group, ranks in knows.items():  # if no record names members: who knows it
            self.members.setdefault(group, tuple(sorted(ranks)))

    def name(self, group: str) -> str:
        """Name a group for people, with its ranks: many groups of a mesh share one name."""
        called, members = self.names.get(group, ""), name_ranks(self.members[group])
        if called in (DEFAULT_GROUP, "") and group == "0":
            return "the default group"
        return f"group {called if called not in ('', 'undefined') else group} ({members})"

    def of(self, head: Head) -> str:
        """Return ``all_reduce #12 of group TP (ranks 0-3)``, or a message with its other end."""
        op = f"a {head.op}" if head.peer is not None else head.short
        return f"{op} of {self.name(head.group)}"

    def stand(self, rank: int, group: str, seq: int) -> Stand:
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
            if seq in self.entries[rank, group]:
                return "open"
            return "before" if seq > record.newest else "ended"
        # a message records how many operations were entered before it
        late = seq > record.last_enqueued and (record.messages or not of_messages)
        return "before" if late else "unknown"

    def stands(self, group: str, seq: int, but: Collection[int]) -> dict[Stand, list[int]]:
        """Return the members in each state at an operation, without the ranks in ``but``."""
        found: dict[Stand, list[int]] = defaultdict(list)
        for rank in self.members[group]:
            if rank not in but:
                found[self.stand(rank, group, seq)].append(rank)
        return found

    def is_before(self, peer: int, head: Head) -> bool:
        """Whether the other end of a message has posted fewer, by its count of messages."""
        record = self.columns.get((peer, head.group))
        if record is None or record.entries or record.messages or len(self.members[head.group]) > 2:
            return False
        counts_messages = record.last_enqueued > self.last_number[head.group] + 1
        return counts_messages and 0 < head.seq - record.last_enqueued <= NEAR

    def last_call(self, rank: int) -> Frame | None:
        """Return the user's line from which a rank called the last operation that it entered."""
        flight = self.flights[rank]
        called = [entry for group in flight.groups for entry in group.entries if entry.site]
        last = max(called, key=lambda entry: entry.recorded, default=None)
        return users_place(flight.call_of(last).frames) if last is not None else None


def _proven(op: str, stands: Mapping[Stand, list[int]]) -> tuple[int, ...]:
    """Return where an operation has ended, if that proves that every member had entered it.

    Then only the GPUs still had to finish it.
    """
    ended = tuple(stands.get("ended", ()))
    proves = op not in GOES_TO_ONE and len(ended) > (1 if op in COMES_FROM_ONE else 0)
    return ended if proves and not stands.get("before") else ()


class _Search:
    """Follows the waits of one job from rank to rank.

    Attributes:
        enders: For each waiting rank, the ranks that it waits for.
        absent: For each operation who waits in it, and who has not entered and has nothing open.
        ended: Ranks whose oldest open operation has ended on others; the operation, and the others.
        stuck_together: Operations that all members have entered.
        unknown: Ranks for which nothing shows whether they entered; and the operation.
        doubtful: Such ranks with nothing open; who waits for them, and in which operation.
    """

    def __init__(self, board: Board, world_size: int) -> None:
        self.board = board
        self.world_size = world_size
        self.enders: dict[int, tuple[int, ...]] = {}
        self.absent: dict[Head, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        self.ended: list[tuple[int, Head, tuple[int, ...]]] = []
        self.stuck_together: list[tuple[Head, list[int]]] = []
        self.unknown: dict[int, Head] = {}
        self.doubtful: dict[int, list[tuple[int, Head]]] = defaultdict(list)
        together: dict[tuple[str, int, str], list[int]] = defaultdict(list)
        for rank, head in sorted(board.heads.items()):
            together[head.group, head.seq, "" if head.peer is None else head.op].append(rank)
            if head.peer is not None:
                self._message(rank, head, head.peer)
        pairs = [(board.heads[ranks[0]], ranks) for ranks in together.values()]
        for head, ranks in pairs:
            if head.peer is None:
                self._collective(head, ranks)
        self.by_head = sorted(pairs, key=lambda pair: (pair[0].peer is not None, -len(pair[1])))
        for peer, waiting in self.doubtful.items():
            # had it ended there, it would have ended on one of several waiting ranks
            if len({rank for rank, _ in waiting}) > 1:
                for rank, head in waiting:
                    self._count_absent(head, [rank], [peer])

    def _collective(self, head: Head, waiting: list[int]) -> None:
        board = self.board
        stands = board.stands(head.group, head.seq, waiting)
        if through := _proven(head.op, stands):
            self.ended += [(rank, board.heads[rank], through) for rank in waiting]
            self.enders.update(dict.fromkeys(waiting, ()))
            return
        due = sorted([*stands["before"], *stands["open"]])
        untold = sorted([*stands["missing"], *stands["unknown"]])
        if idle := [rank for rank in stands["before"] if rank not in board.heads]:
            self._count_absent(head, waiting, idle)
        for rank in stands["unknown"]:
            if rank not in board.heads:
                self.doubtful[rank] += [(waiter, head) for waiter in waiting]
        self.unknown.update(dict.fromkeys(untold, head))
        if not due and not untold and not stands["ended"]:
            self.stuck_together.append((head, waiting))
        self.enders.update(dict.fromkeys(waiting, tuple(due or untold)))

    def _count_absent(self, head: Head, waiting: Iterable[int], ranks: Iterable[int]) -> None:
        self.absent[head][0].update(waiting)
        self.absent[head][1].update(ranks)

    def _message(self, rank: int, head: Head, peer: int) -> None:
        other = self.board.heads.get(peer)
        self.enders[rank] = (peer,)
        if peer not in self.board.flights:
            self.unknown[peer] = head
        elif other is None and self.board.is_before(peer, head):
            self._count_absent(head, [rank], [peer])
        elif other is None:
            self.doubtful[peer].append((rank, head))
        elif other.group == head.group and other.peer == rank:
            self.enders[rank] = ()
            if rank < peer:
                self.stuck_together.append((head, [rank, peer]))

    # The finding.

    def finding(self) -> LeftFinding:
        """Name the culprits, or say what is proven without them."""
        # few absent ranks are late; if most are absent, the ranks that entered may be ahead
        every = [(head, *both) for head, both in self.absent.items()]
        late = [
            each for each in every if 2 * len(each[2]) <= len(self.board.members[each[0].group])
        ]
        ahead = [each for each in every if each not in late]
        found = self._mismatch()
        if found is None and (late or self.ended):
            found = self._of_culprits(late)
        if found is None and self.stuck_together:
            found = self._of_transport()
        if found is None and (self.unknown or self.doubtful or ahead):
            found = self._of_unknown(ahead)
        return self._with_all(found or self._of_circle())

    def _mismatch(self) -> LeftFinding | None:
        """Find the number at which most ranks are in different operations or sizes."""
        board = self.board
        for head, waiting in self.by_head:
            ways: dict[str, list[int]] = {}
            for rank in board.members[head.group] if head.peer is None else ():
                entry = board.entries.get((rank, head.group), {}).get(head.seq)
                if entry is None or head.seq <= board.through[rank, head.group]:
                    continue
                way = entry.op  # sizes of other operations differ by rank
                if entry.op in SAME_SIZES:  # shapes may differ if the count is equal
                    sizes = " ".join(str(prod(size)) for size in entry.sizes)
                    way = " ".join(filter(None, (entry.op, f"[{sizes}]", *entry.dtypes[:1])))
                ways.setdefault(way, []).append(rank)
            if sum(not set(ranks).isdisjoint(waiting) for ranks in ways.values()) > 1:
                break
        else:
            return None
        largest = max(ways.values(), key=len)
        majority = 2 * len(largest) > len(board.members[head.group]) > 2
        every = sorted(rank for ranks in ways.values() for rank in ranks)
        culprits = tuple(rank for rank in every if rank not in largest) if majority else ()
        each = ", ".join(
            f"{name_ranks(ranks)} {verb(ranks, 'is', 'are')} in {way}"
            for way, ranks in sorted(ways.items(), key=lambda item: len(item[1]))
        )
        where = f"#{head.seq} of {board.name(head.group)}"
        who = "" if majority else "; which of them is wrong is not told by their records"
        if culprits:
            self.enders.update(dict.fromkeys(largest, culprits))
        places = {board.last_call(rank) for rank in every}
        apart = len(places) > 1 and None not in places
        return LeftFinding(
            cause="rank_diverged" if apart else "collective_mismatch",
            aspect="made" if apart else None,
            culprits=culprits,
            certainty="majority" if majority else None,
            confidence=0.9 if majority else 0.8,
            sentence=f"ranks meet with different operations under {where}: {each}{who}",
            collectives=(collective(head.group, head.seq, ways, board.members[head.group]),),
        )

    def _of_culprits(self, late: list[Absent]) -> LeftFinding:
        board, sentences, blamed = self.board, [], set[int]()
        # name each rank once, with the operation in which most ranks wait
        for head, _, absent in sorted(
            late, key=lambda each: (each[0].peer is not None, -len(each[1]))
        ):
            if not (ranks := absent - blamed):
                continue
            blamed |= ranks
            have, place = verb(ranks, "has", "have"), board.last_call(min(ranks))
            after = f" after its last call at {short_place(place)}" if place is not None else ""
            own = verb(ranks, "it is in its own code", "they are in their own code")
            sentences.append(
                f"{name_ranks(ranks)} {have} not entered {board.of(head)}, and {have} "
                f"nothing else open: {own}, or inside that call{after}"
            )
        by_head: dict[tuple[str, int], list[tuple[int, Head, tuple[int, ...]]]] = defaultdict(list)
        for each in self.ended:
            by_head[each[1].op, each[1].seq].append(each)
        for ended in by_head.values():
            who = name_ranks(rank for rank, _, _ in ended)
            on = name_ranks(rank for _, _, ranks in ended for rank in ranks)
            head = ended[0][1]
            sentences.append(
                f"{board.of(head) if len(ended) == 1 else head.short} is still open on {who} "
                f"and has ended on {on}: the GPU, driver or link of {who} did not finish it"
            )
        culprits = tuple(sorted({*blamed, *(rank for rank, _, _ in self.ended)}))
        return LeftFinding(
            cause="rank_stalled",
            aspect="not_entered" if late else "device",
            culprits=culprits,
            certainty="proven",
            confidence=0.9,
            sentence="; ".join(sentences),
            place=board.last_call(culprits[0]),
        )

    def _of_transport(self) -> LeftFinding:
        head, ranks = max(self.stuck_together, key=lambda item: len(item[1]))
        why = "the transport between them (network, NVLink, a GPU) does not move"
        first = all(record.last_completed <= 0 for record in self.board.columns.values())
        if first:
            why = "no operation of the job ever ended: their GPUs cannot reach each other"
        return self._nobody(
            "network_wait",
            "first_operation" if first else "transport",
            0.7,
            f"all of {name_ranks(ranks)} have entered {self.board.of(head)}, and it has ended on "
            f"none: {why}; no rank is at fault by its record",
        )

    def _of_unknown(self, ahead: list[Absent]) -> LeftFinding:
        doubtful = {rank: waiting[0][1] for rank, waiting in self.doubtful.items()}
        unclear = {**self.unknown, **doubtful}
        missing = [rank for rank in self.unknown if rank not in self.board.flights]
        if ahead and not missing:
            head, waiting, absent = max(ahead, key=lambda each: len(each[2]))
            few, make = name_ranks(waiting), verb(waiting, "makes", "make")
            guess = f"{few} {make} a call that others do not there"
            return self._nobody(
                "rank_diverged",
                "made",
                0.4,
                f"only {few} {verb(waiting, 'has', 'have')} entered {self.board.of(head)}; "
                f"{name_ranks(absent)} have not, and have nothing else open: who is at fault is "
                "not proven",
                guess,
            )
        whom = missing or [*unclear]
        who, guess = name_ranks(whom), ""
        why = f"no dump of {who} is here, so who is late is unknown"
        if not missing:
            why = f"the records of {who} do not tell whether it has ended there"
            guess = f"{who} did not come"
        waits = [rank for rank, enders in self.enders.items() if set(enders).intersection(whom)]
        where = f"in {self.board.of(unclear[min(whom)])}"
        text = f"{name_ranks(waits)} {verb(waits, 'waits', 'wait')} {where}; {why}"
        return self._nobody("unknown", "no_dump", 0.3, text, guess)

    def _of_circle(self) -> LeftFinding:
        circle = "; ".join(
            f"{name_ranks(ranks)} {verb(ranks, 'waits', 'wait')} in {self.board.of(head)}"
            for head, ranks in self.by_head[:4]
        )
        return self._nobody(
            "collective_mismatch",
            "order",
            0.6,
            f"ranks wait for each other in several groups: {circle}; which of them left the common "
            "order is not told by their records",
        )

    def _nobody(
        self, cause: Cause, aspect: str | None, sure: float, text: str, guess: str = ""
    ) -> LeftFinding:
        evidence = (EvidenceItem("guess", None, f"a guess: {guess}"),) if guess else ()
        return LeftFinding(cause=cause, aspect=aspect, confidence=sure, sentence=text,
                           certainty="guess" if guess else None, evidence=evidence)  # fmt: skip

    # Common to all findings.

    def _with_all(self, found: LeftFinding) -> LeftFinding:
        board, blamed = self.board, set(found.culprits)
        waiters = tuple(
            rank for rank, enders in sorted(self.enders.items()) if enders and rank not in blamed
        )
        waits = tuple(
            Wait((rank,), self.enders[rank], (f"in {board.heads[rank].short}",)) for rank in waiters
        )
        states: dict[int, State] = dict.fromkeys(board.flights, "running")
        states.update(dict.fromkeys(board.heads, "waiting"))
        states.update(dict.fromkeys(blamed, "stalled"))
        rows = (
            collective(head.group, head.seq, {head.op: ranks}, board.members[head.group])
            for head, ranks in self.by_head
            if head.peer is None
        )
        return replace(
            found,
            graph=WaitGraph(waits=waits, waiters=waiters),
            states=states,
            collectives=(*found.collectives, *rows)[:MOST_FACTS],
            evidence=(*found.evidence, *self._facts())[:MOST_FACTS],
            gaps=tuple(self._gaps(found)),
        )

    def _facts(self) -> Iterator[EvidenceItem]:
        """Yield for each operation with ranks in it: who is in it, through it, and not there."""
        for head, ranks in self.by_head:
            who = f"{name_ranks(ranks)}: oldest open is {self.board.of(head)}"
            alone = head.peer is not None
            stands = {} if alone else self.board.stands(head.group, head.seq, ranks)
            for stand, text in STANDS_IN_WORDS.items():
                if stands.get(stand):
                    who += f"; {text} {name_ranks(stands[stand])}"
            yield EvidenceItem("flight_record", None, who)

    def _gaps(self, found: LeftFinding) -> Iterator[Gap]:
        missing = set(range(self.world_size)) - self.board.flights.keys()
        if missing:
            why = "no dump of it is here: what it did is unknown, which is no guilt"
            whose = f"{FLIGHT_RECORD} of {name_ranks(missing)}"
            yield Gap(whose, None, why, "flight_record", KEEP_RECORDS)
        if found.culprits and not any(flight.sites for flight in self.board.flights.values()):
            why = "these dumps name no Python calls, so the line of code is unknown"
            yield Gap("calls of operations", None, why, "stack", KEEP_CALLS)


def judge_left(case: Case) -> LeftFinding | None:
    """Explain a case that was read from files; None if the files show nothing wrong.

    A log that proves how a process ended explains more than what others waited for then. Otherwise
    flight records come first, as they have every operation.
    """
    flights = {view.rank: view.flight for view in case.ranks if view.flight is not None}
    board = Board(flights)
    found = [_Search(board, case.run.world_size).finding()] if board.heads else []
    if case.left and (from_logs := find_in_logs(LogBook(case.left.logs))) is not None:
        if flights:  # the logs miss flight records, but these are here
            gaps = tuple(gap for gap in from_logs.gaps if gap.kind != "flight_record")
            from_logs = replace(from_logs, gaps=gaps)
        found.append(from_logs)
    order = {"hang": 1, "suspect": 2}
    found.sort(
        key=lambda finding: (
            not finding.culprits,
            order.get(finding.kind, 0),
            finding.cause == "unknown",
        )
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
