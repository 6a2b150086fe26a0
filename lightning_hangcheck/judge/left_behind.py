"""Who held a job up that is gone, by the flight records that its ranks left behind. Pure.

A GPU does its operations in order, so each rank's *oldest open* one tells where it stands. From
there the waits are followed: a member that has not come, or stands in an older operation of
another group, is waited for. They end at a rank with nothing open (it is in its own code), at one
whose operation has ended on others (its GPU, driver or transport), at members that have all come to
one operation (the transport between them, blame nobody), or at a rank without a dump (unknown).

What a dump does not list may have ended. Numbers are compared within one group only, and those of
messages not at all, but where a group has two members: both ends count them alike there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.judge.frames import users_place
from lightning_hangcheck.judge.graph import Wait, WaitGraph, solve
from lightning_hangcheck.judge.left_logs import find_in_logs
from lightning_hangcheck.judge.log_book import LeftFinding, LogBook
from lightning_hangcheck.judge.wording import name_ranks, short_place, verb
from lightning_hangcheck.model.evidence import Frame, Gap
from lightning_hangcheck.model.flight import FLIGHT_RECORD, SAME_SIZES
from lightning_hangcheck.model.verdict import CollectiveState, EvidenceItem, State
from lightning_hangcheck.text.shown import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.flight import (
        CollectiveEntry,
        CollectiveRecord,
        FlightRecord,
        Message,
    )

    Numbered = tuple[str, int]
    """A group by its name, and the number of an operation in it."""

Stand = Literal["open", "ended", "before", "unknown", "missing"]
"""Of a rank at an operation: it is in it, through it, has not entered it; its record does not tell,
or there is none."""
COMES_FROM_ONE = frozenset({"broadcast", "_broadcast_oop", "scatter"})
"""Its source may be through before anybody else has come."""
GOES_TO_ONE = frozenset({"reduce", "_reduce_oop", "gather"})
"""All but the one that it goes to may be through before anybody else has come."""
DEFAULT_GROUP = "default_pg"
NEAR = 1_000
"""Two counts of one thing in one incident are no further apart than this."""
FEWEST_WITNESSES = 2
MOST_FACTS = 12
MOST_SHOWN = 8
KEEP_RECORDS = (
    "next time keep them: TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
    "TORCH_FR_DUMP_TEMP_FILE=/shared/INCIDENT/rank_ (before torch 2.9 "
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE), a folder of its own for each incident; or hangcheck run"
)
KEEP_CALLS = (
    "from torch 2.5 on dumps name the calls; TORCH_NCCL_TRACE_CPP_STACK=1 adds the C++ ones"
)


class Head(NamedTuple):
    """A rank's oldest open operation or message.

    Attributes:
        seq: Its number in the group; of a message among the messages of this rank there.
        message: None of an operation that all members meet in.
    """

    group: str
    seq: int
    op: str
    message: Message | None = None

    @property
    def short(self) -> str:
        """Write ``all_reduce #12``, or ``send``."""
        return self.op.partition(" ")[0] if self.message is not None else f"{self.op} #{self.seq}"


class Ended(NamedTuple):
    """A rank whose oldest open operation has ended on others."""

    rank: int
    head: Head
    on: tuple[int, ...]


class Absent(NamedTuple):
    """Ranks that have not entered an operation, and have nothing else open."""

    head: Head
    waiting: tuple[int, ...]
    ranks: tuple[int, ...]


class Board:
    """The records of all ranks, as one table: rank and group to what is known there."""

    def __init__(self, flights: Mapping[int, FlightRecord]) -> None:
        self.flights = flights
        self.columns: dict[tuple[int, str], CollectiveRecord] = {}
        self.entries: dict[tuple[int, str], dict[int, CollectiveEntry]] = {}
        self.members: dict[str, tuple[int, ...]] = {}
        self.names: dict[str, str] = {}
        self.with_messages: set[str] = set()
        self.last_number: Counter[str] = Counter()
        self.through: dict[tuple[int, str], int] = {}
        for rank, flight in flights.items():
            for record in flight.groups:
                self.columns[rank, record.group] = record
                self.entries[rank, record.group] = {one.seq: one for one in record.entries}
                ended = (one.seq for one in record.entries if one.retired)
                self.through[rank, record.group] = max(record.last_completed, *ended, 0)
                self.names.setdefault(record.group, record.description)
                if record.ranks:
                    self.members.setdefault(record.group, record.ranks)
                if record.messages:
                    self.with_messages.add(record.group)
                if record.entries or record.messages:
                    number = max(self.last_number[record.group], record.last_enqueued)
                    self.last_number[record.group] = number
        self.heads = {
            rank: head for rank in flights if (head := self._oldest_open(rank)) is not None
        }

    def members_of(self, group: str) -> tuple[int, ...]:
        """Return the members of a group; where no record names them, who knows it."""
        if group not in self.members:
            known = sorted(rank for rank, name in self.columns if name == group)
            self.members[group] = tuple(known)
        return self.members[group]

    def name(self, group: str) -> str:
        """Name a group as people do, with its ranks: of a mesh many have one name."""
        called, members = self.names.get(group, ""), name_ranks(self.members_of(group))
        if called in (DEFAULT_GROUP, "") and group == "0":
            return "the default group"
        return f"group {called if called not in ('', 'undefined') else group} ({members})"

    def of(self, head: Head) -> str:
        """Write ``all_reduce #12 of group TP (ranks 0-3)``, or a message by its ends."""
        if head.message is not None:
            return f"a {head.op} of {self.name(head.group)}"
        return f"{head.op} #{head.seq} of {self.name(head.group)}"

    def stand(self, rank: int, group: str, seq: int) -> Stand:
        """Say where a rank is with an operation."""
        if rank not in self.flights:
            return "missing"
        record = self.columns.get((rank, group))
        if record is None:
            return "unknown"
        if record.entries and seq <= self.through[rank, group]:
            return "ended"  # one group's operations end in their order
        if seq in self.entries[rank, group]:
            return "open"
        if record.entries:
            return "before" if seq > record.newest else "ended"
        if record.messages:  # each tells how many operations were entered before it
            return "before" if seq > record.last_enqueued else "unknown"
        if group in self.with_messages:  # its own numbers may be those of messages
            return "unknown"
        if seq > record.last_enqueued:
            return "before"
        return "ended" if seq <= record.last_completed else "unknown"

    def answers(self, rank: int, head: Head, peer: int) -> Stand:
        """Say where the other end of a rank's message is with it."""
        if peer not in self.flights or head.message is None:
            return "missing"
        record = self.columns.get((peer, head.group))
        if record is None:
            return "unknown"
        wanted = rank - peer, not head.message.sends
        if any((one.away, one.sends) == wanted and not one.retired for one in record.messages):
            return "open"
        if record.entries or record.messages or len(self.members_of(head.group)) != 2:
            return "unknown"
        counts_messages = record.last_enqueued > self.last_number[head.group] + 1
        near = abs(head.seq - record.last_enqueued) <= NEAR
        if not (counts_messages and near):
            return "unknown"
        return "before" if head.seq > record.last_enqueued else "ended"

    def last_call(self, rank: int) -> Frame | None:
        """Return the user's line from which a rank called the last operation that it entered."""
        flight = self.flights[rank]
        called = [one for group in flight.groups for one in group.entries if one.site]
        if not called:
            return None
        return users_place(flight.call_of(max(called, key=lambda one: one.recorded)).frames)

    def _oldest_open(self, rank: int) -> Head | None:
        found: list[tuple[tuple[int, int], Head]] = []
        for record in self.flights[rank].groups:
            for entry in record.entries:
                if entry.seq > self.through[rank, record.group]:
                    order = entry.recorded, entry.created_ns
                    found.append((order, Head(record.group, entry.seq, entry.op)))
            for one in record.messages:
                if not one.retired:
                    order = one.recorded, one.created_ns
                    op = f"send to rank {rank + one.away}" if one.sends else ""
                    op = op or f"recv from rank {rank + one.away}"
                    found.append((order, Head(record.group, one.seq, op, one)))
        return min(found, key=lambda one: one[0])[1] if found else None


class _Search:
    """Follows the waits of one job from rank to rank."""

    def __init__(self, board: Board, world_size: int) -> None:
        self.board = board
        self.world_size = world_size
        self.waiting: dict[Numbered, list[int]] = defaultdict(list)
        self.enders: dict[int, tuple[int, ...]] = {}
        self.absent: dict[tuple[str, int, str], Absent] = {}
        self.ended: list[Ended] = []
        self.stuck_together: list[tuple[Head, tuple[int, ...]]] = []
        self.unknown: dict[int, Head] = {}
        self.doubtful: dict[int, list[tuple[int, Head]]] = defaultdict(list)
        for rank, head in board.heads.items():
            if head.message is None:
                self.waiting[head.group, head.seq].append(rank)
            else:
                self._message(rank, head, rank + head.message.away)
        for (group, seq), ranks in self.waiting.items():
            self._collective(board.heads[ranks[0]], group, seq, tuple(ranks))
        for rank, enders in list(self.enders.items()):
            if enders and not any(one in board.flights for one in enders):
                self._younger(rank)
        for peer, waiting in list(self.doubtful.items()):
            if len({rank for rank, _ in waiting}) >= FEWEST_WITNESSES:
                self._count_absent(peer, waiting)

    def _collective(self, head: Head, group: str, seq: int, waiting: tuple[int, ...]) -> None:
        board = self.board
        stands: dict[Stand, list[int]] = defaultdict(list)
        for rank in board.members_of(group):
            if rank not in waiting:
                stands[board.stand(rank, group, seq)].append(rank)
        before, late, through = stands["before"], stands["open"], tuple(stands["ended"])
        if not before and self._has_come_through(head.op, through):
            self.ended += [Ended(rank, board.heads[rank], through) for rank in waiting]
            self.enders.update(dict.fromkeys(waiting, ()))
            return
        due = sorted([*before, *late])
        idle = tuple(rank for rank in before if rank not in board.heads)
        if idle:
            self.absent[group, seq, head.op] = Absent(head, waiting, idle)
        untold = [*stands["missing"], *stands["unknown"]]
        for rank in stands["unknown"]:
            if rank not in board.heads:
                self.doubtful[rank] += [(one, head) for one in waiting]
        self.unknown.update(dict.fromkeys(untold, head))
        if not due and not untold and not through:
            self.stuck_together.append((head, waiting))
        self.enders.update(dict.fromkeys(waiting, tuple(due or sorted(untold))))

    def _count_absent(self, peer: int, waiting: Sequence[tuple[int, Head]]) -> None:
        """Several wait for a rank with nothing open: what ended there would have ended on them."""
        for rank, head in waiting:
            key = head.group, head.seq, head.op
            known = self.absent.get(key, Absent(head, (), ()))
            who, ranks = {*known.waiting, rank}, {*known.ranks, peer}
            self.absent[key] = Absent(head, tuple(sorted(who)), tuple(sorted(ranks)))

    def _younger(self, rank: int) -> None:
        """Where nobody tells of a rank's oldest open operation, a younger one may have ended."""
        for record in self.board.flights[rank].groups:
            for entry in record.entries:
                if entry.seq > self.board.through[rank, record.group]:
                    stands = {
                        other: self.board.stand(other, record.group, entry.seq)
                        for other in self.board.members_of(record.group)
                        if other != rank
                    }
                    on = tuple(other for other, stand in stands.items() if stand == "ended")
                    if "before" not in stands.values() and self._has_come_through(entry.op, on):
                        self.ended.append(Ended(rank, Head(record.group, entry.seq, entry.op), on))
                        self.enders[rank] = ()
                        return

    def _message(self, rank: int, head: Head, peer: int) -> None:
        stand = self.board.answers(rank, head, peer)
        other = self.board.heads.get(peer)
        self.enders[rank] = (peer,)
        if stand == "missing":
            self.unknown[peer] = head
        elif other is None and stand == "before":
            self._count_absent(peer, [(rank, head)])
        elif other is None:
            self.doubtful[peer].append((rank, head))
        elif other.group == head.group and other.message and peer + other.message.away == rank:
            self.enders[rank] = ()
            if rank < peer:
                self.stuck_together.append((head, (rank, peer)))

    def _has_come_through(self, op: str, through: Sequence[int]) -> bool:
        """Whether an end on these proves that every member had come: the rest is the GPU's."""
        if op in GOES_TO_ONE:
            return False
        return len(through) > (1 if op in COMES_FROM_ONE else 0)

    # What that comes to.

    def finding(self) -> LeftFinding:
        """Name the culprits, or say what is proven without any."""
        idle = {rank for one in self._absent(most=False) for rank in one.ranks}
        culprits = tuple(sorted({*idle, *(one.rank for one in self.ended)}))
        parted = self._parted()
        if parted is not None:
            found = self._of_mismatch(*parted)
        elif culprits:
            found = self._of_culprits(culprits)
        elif self.stuck_together:
            found = self._of_transport()
        elif self.unknown or self.doubtful or self._absent(most=True):
            found = self._of_unknown()
        else:
            found = self._of_circle()
        return self._with_all(found)

    def _absent(self, *, most: bool) -> list[Absent]:
        """Where few are absent they are late; where most are, those that came may be ahead."""
        members = self.board.members_of
        return [
            one
            for one in self.absent.values()
            if (2 * len(one.ranks) > len(members(one.head.group))) is most
        ]

    def _parted(self) -> tuple[Numbered, dict[str, list[int]]] | None:
        """Find where most ranks stand under one number, with different operations or sizes."""
        board = self.board
        for (group, seq), waiting in sorted(self.waiting.items(), key=lambda one: -len(one[1])):
            ways: dict[str, list[int]] = {}
            for rank in board.members_of(group):
                entry = board.entries.get((rank, group), {}).get(seq)
                if entry is None or seq <= board.through[rank, group]:
                    continue
                way = entry.op  # of other operations sizes differ by rank
                if entry.op in SAME_SIZES:  # shapes may differ where the count is the same
                    sizes = " ".join(str(prod(size)) for size in entry.sizes)
                    way = " ".join(filter(None, (entry.op, f"[{sizes}]", *entry.dtypes[:1])))
                ways.setdefault(way, []).append(rank)
            standing = {way for way, ranks in ways.items() if set(ranks) & set(waiting)}
            if len(standing) > 1:
                return (group, seq), ways
        return None

    def _of_mismatch(self, numbered: Numbered, ways: Mapping[str, list[int]]) -> LeftFinding:
        group, seq = numbered
        members = self.board.members_of(group)
        largest = max(ways.values(), key=len)
        majority = 2 * len(largest) > len(members) > 2
        others = sorted(rank for ranks in ways.values() for rank in ranks)
        culprits = tuple(rank for rank in others if rank not in largest) if majority else ()
        each = ", ".join(
            f"{name_ranks(ranks)} {verb(ranks, 'is', 'are')} in {way}"
            for way, ranks in sorted(ways.items(), key=lambda one: len(one[1]))
        )
        where = f"#{seq} of {self.board.name(group)}"
        who = "" if majority else "; which of them is wrong is not told by their records"
        for one in largest if culprits else ():
            self.enders[one] = culprits
        places = {rank: self.board.last_call(rank) for rank in others}
        apart = len({places[rank] for rank in others}) > 1 and None not in places.values()
        ops = {way: format_ranks(ranks) for way, ranks in ways.items()}
        ranks = format_ranks(members)
        return LeftFinding(
            cause="rank_diverged" if apart else "collective_mismatch",
            aspect="made" if apart else None,
            culprits=culprits,
            certainty="majority" if majority else None,
            confidence=0.9 if majority else 0.8,
            sentence=f"ranks meet with different operations under {where}: {each}{who}",
            collectives=(CollectiveState(group=group, ranks=ranks, seq=seq, ops=ops),),
        )

    def _of_culprits(self, culprits: tuple[int, ...]) -> LeftFinding:
        sentences, told = [], set[int]()  # each rank once, by the operation for which most wait
        late = self._absent(most=False)
        for one in sorted(late, key=lambda each: (bool(each.head.message), -len(each.waiting))):
            ranks = tuple(rank for rank in one.ranks if rank not in told)
            told.update(ranks)
            if ranks:
                have, place = verb(ranks, "has", "have"), self.board.last_call(min(ranks))
                after = f" after its last call at {short_place(place)}" if place is not None else ""
                sentences.append(
                    f"{name_ranks(ranks)} {have} not entered {self.board.of(one.head)}, and {have} "
                    f"nothing else open: {verb(ranks, 'it is', 'they are')} in "
                    f"{verb(ranks, 'its', 'their')} own code, or inside that call{after}"
                )
        by_head: dict[tuple[str, int], list[Ended]] = defaultdict(list)
        for each in self.ended:
            by_head[each.head.op, each.head.seq].append(each)
        for ended in by_head.values():
            who = name_ranks(each.rank for each in ended)
            on = name_ranks(rank for each in ended for rank in each.on)
            head = ended[0].head
            sentences.append(
                f"{self.board.of(head) if len(ended) == 1 else head.short} is still open on {who} "
                f"and has ended on {on}: the GPU, driver or link of {who} did not finish it"
            )
        return LeftFinding(
            cause="rank_stalled",
            aspect="not_entered" if late else "device",
            culprits=culprits,
            certainty="proven",
            confidence=0.9,
            sentence="; ".join(sentences),
            place=self.board.last_call(culprits[0]),
        )

    def _of_transport(self) -> LeftFinding:
        head, ranks = max(self.stuck_together, key=lambda one: len(one[1]))
        first = all(
            record.last_completed <= 0
            for flight in self.board.flights.values()
            for record in flight.groups
        )
        why = "the transport between them (network, NVLink, a GPU) does not move"
        if first:
            why = "no operation of the job ever ended: their GPUs cannot reach each other"
        return LeftFinding(
            cause="network_wait",
            aspect="first_operation" if first else "transport",
            confidence=0.7,
            sentence=(
                f"all of {name_ranks(ranks)} have entered {self.board.of(head)}, and it has ended "
                f"on none: {why}; no rank is at fault by its record"
            ),
        )

    def _of_unknown(self) -> LeftFinding:
        ahead = self._absent(most=True)
        missing = sorted(rank for rank in self.unknown if rank not in self.board.flights)
        if missing:
            head = self.unknown[missing[0]]
            waits = [one for one in self.enders if set(self.enders[one]) & set(missing)]
            return LeftFinding(
                cause="unknown",
                aspect="no_dump",
                confidence=0.3,
                sentence=(
                    f"{name_ranks(waits)} {verb(waits, 'waits', 'wait')} in {self.board.of(head)}; "
                    f"no dump of {name_ranks(missing)} is here, so who is late is unknown"
                ),
            )
        if ahead:
            one = max(ahead, key=lambda each: len(each.ranks))
            waits = list(one.waiting)
            guess = f"{name_ranks(waits)} {verb(waits, 'makes', 'make')} a call that others do not"
            return LeftFinding(
                cause="rank_diverged",
                aspect="made",
                certainty="guess",
                confidence=0.4,
                sentence=(
                    f"only {name_ranks(waits)} {verb(waits, 'has', 'have')} entered "
                    f"{self.board.of(one.head)}; {name_ranks(one.ranks)} have not, and have "
                    "nothing else open: who is at fault is not proven"
                ),
                evidence=(EvidenceItem("guess", None, f"a guess: {guess} there"),),
            )
        told = {**self.unknown, **{rank: one[0][1] for rank, one in self.doubtful.items()}}
        rank, head = min(told.items())
        return LeftFinding(
            cause="unknown",
            aspect="no_dump",
            certainty="guess",
            confidence=0.3,
            sentence=(
                f"ranks wait for {name_ranks(told)} in {self.board.of(head)}; their records do "
                "not tell whether it has ended there"
            ),
            evidence=(EvidenceItem("guess", rank, f"a guess: {name_ranks(told)} did not come"),),
        )

    def _of_circle(self) -> LeftFinding:
        told = [
            f"{name_ranks(ranks)} {verb(ranks, 'waits', 'wait')} in {self.board.of(head)}"
            for head, ranks in self._by_head()
        ]
        return LeftFinding(
            cause="collective_mismatch",
            confidence=0.6,
            sentence=(
                f"ranks wait for each other in several groups: {'; '.join(told[:4])}; "
                "which of them left the common order is not told by their records"
            ),
        )

    # What all have in common.

    def _with_all(self, found: LeftFinding) -> LeftFinding:
        solved = solve(((rank,), enders) for rank, enders in self.enders.items() if enders)
        board, blamed = self.board, set(found.culprits)
        waits = tuple(
            Wait((rank,), enders, (f"in {board.heads[rank].short}",))
            for rank, enders in sorted(self.enders.items())
            if enders and rank not in blamed
        )
        led = {rank for wait in waits for rank in wait.waiters if isinstance(rank, int)}
        graph = WaitGraph(
            waits=waits,
            ends=tuple(sorted(blamed or solved.ends)),
            waiters=tuple(sorted(led - blamed)),
            between_ranks=bool(waits),
            circles=solved.circles,
        )
        states: dict[int, State] = dict.fromkeys(board.flights, "running")
        states.update(dict.fromkeys(board.heads, "waiting"))
        states.update(dict.fromkeys(blamed, "stalled"))
        rows = [
            CollectiveState(
                group=head.group,
                ranks=format_ranks(board.members_of(head.group)),
                seq=head.seq,
                ops={head.op: format_ranks(ranks)},
            )
            for head, ranks in self._by_head()
            if head.message is None
        ]
        return replace(
            found,
            graph=graph,
            states=states,
            collectives=(*found.collectives, *rows)[:MOST_FACTS],
            evidence=(*found.evidence, *self._facts())[:MOST_FACTS],
            gaps=tuple(self._gaps(found)),
        )

    def _by_head(self) -> list[tuple[Head, list[int]]]:
        together: dict[Numbered, list[int]] = defaultdict(list)
        for rank, head in sorted(self.board.heads.items()):
            together[head.group, head.seq].append(rank)
        pairs = [(self.board.heads[ranks[0]], ranks) for ranks in together.values()]
        return sorted(pairs, key=lambda one: -len(one[1]))

    def _facts(self) -> Iterator[EvidenceItem]:
        """Tell each operation in which ranks stand: who is in it, through it, and not there."""
        messages: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for head, ranks in self._by_head():
            who = f"{name_ranks(ranks)}: oldest open is {self.board.of(head)}"
            if head.message is not None:
                pairs = [(rank, rank + head.message.away) for rank in ranks]
                messages[head.short, self.board.names.get(head.group) or head.group] += pairs
            else:
                stands: dict[Stand, list[int]] = defaultdict(list)
                for rank in self.board.members_of(head.group):
                    if rank not in ranks:
                        stands[self.board.stand(rank, head.group, head.seq)].append(rank)
                words: dict[Stand, str] = {
                    "ended": "ended on",
                    "before": "not entered by",
                    "open": "entered, behind something older, by",
                    "unknown": "not told by the record of",
                    "missing": "no dump of",
                }
                for stand, text in words.items():
                    if stands[stand]:
                        who += f"; {text} {name_ranks(stands[stand])}"
                yield EvidenceItem("flight_record", None, who)
        for (kind, group), ends in messages.items():
            who = name_ranks(rank for rank, _ in ends)
            each = ", ".join(f"{rank} with {peer}" for rank, peer in sorted(ends)[:MOST_SHOWN])
            more = ", ..." if len(ends) > MOST_SHOWN else ""
            who = f"{who}: oldest open is a {kind} in {group} ({each}{more})"
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
    """Explain a case that was read from files; None where nothing wrong is seen in them.

    What a log proves of a process that ended explains more than what others waited for then. Else
    records are asked first, which have every operation.
    """
    flights = {view.rank: view.flight for view in case.ranks if view.flight is not None}
    board = Board(flights)
    recorded = _Search(board, case.run.world_size).finding() if board.heads else None
    told = find_in_logs(LogBook(case.left.logs)) if case.left else None
    if told is not None and flights:  # logs say that they hold no records; those are here
        gaps = tuple(gap for gap in told.gaps if gap.kind != "flight_record")
        told = replace(told, gaps=gaps)
    found = [one for one in (recorded, told) if one is not None]
    order = {"hang": 1, "suspect": 2}
    found.sort(key=lambda one: (not one.culprits, order.get(one.kind, 0), one.cause == "unknown"))
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
