"""Where ranks part: in which operation, since when, and which of them left.

Two ranks with different operations under one number of one group have parted for good, whatever any
clock says, as long as one of them is still in its own; what all have been through is history. A
rank that has not come yet, or that moves, has not parted. `find_divergence` is asked once a case;
its answer goes to the graph, the rules and the tables.
"""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge import attribution
from lightning_hangcheck.judge.attribution import Basis, find_diverged
from lightning_hangcheck.judge.graph import solve
from lightning_hangcheck.judge.operations import (
    PAIRED,
    UNRECORDED,
    History,
    Operation,
    PendingCollective,
    Step,
    entered,
    histories,
    is_collective_code,
    record_of,
    still_pending,
    waiting_together,
    way_in,
    ways_of,
)
from lightning_hangcheck.judge.source import rank_conditions, tests_apart

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from lightning_hangcheck.judge.job import JobReading
    from lightning_hangcheck.judge.source import Test
    from lightning_hangcheck.model.case import CodeNote
    from lightning_hangcheck.model.evidence import Frame

    Awaited = Mapping[int, tuple[int, ...]]
    """For whom each rank waits, as `awaited_ranks` tells it."""
    Column = dict[PendingCollective, History]

FEWEST = 2
SENDS = frozenset({"send", "isend"})
LEFT_OUT = Operation("no such operation")
"""What a rank did instead that walked past an operation, by its record."""
MOST_COMPARED = 500
"""Operations from the first that was called from elsewhere: comparing as many takes some 10 ms."""


class Divergence(Struct, frozen=True, kw_only=True):
    """Where ranks part.

    Attributes:
        group: Process group in which they part; None where only frames tell.
        seq: Number in that group under which they part; None where only frames tell.
        last_agreed: Number of the last operation of that group that all had in common; None where
            that is too long ago to be known.
        operations: What each rank does instead.
        diverged: Ranks that left; all where nothing tells.
        basis: Why these.
        proven: The flight record shows it; else only frames do.
        due: Whether what the others do was to come just then, as in the steps before.
    """

    pending_collectives: tuple[PendingCollective, ...]
    operations: dict[int, Operation]
    diverged: tuple[int, ...]
    basis: Basis
    group: str | None = None
    seq: int | None = None
    last_agreed: int | None = None
    proven: bool = False
    due: bool = False

    @property
    def sides(self) -> tuple[list[PendingCollective], list[PendingCollective]]:
        """Those that left, and those that stayed: none where nothing tells who left."""
        gone, every = frozenset(self.diverged), self.pending_collectives
        left = [one for one in every if one.rank in gone]
        return left, [one for one in every if one.rank not in gone]

    @property
    def sends_cross(self) -> bool:
        """Whether each waits in a send for the next, in a ring, and no step before went otherwise.

        None has left out a message yet: what each would receive comes after its send in the code,
        and the order is wrong for all.
        """
        names = {one.name for one in self.operations.values()}
        return self.proven and self.basis == "nothing" and names <= SENDS

    @property
    def same_way(self) -> bool:
        """Whether all ranks came to their operation through the same lines of code."""
        ways = {way_in(way) for way in ways_of(self.pending_collectives)}
        return len(ways) == 1 and () not in ways


def find_divergence(
    job: JobReading, pending: Mapping[int, PendingCollective], awaited: Awaited
) -> Divergence | None:
    """Find where ranks part; None where they don't, or where it cannot be told."""
    waiting: Sequence[PendingCollective] = still_pending(pending)
    if len(waiting) < FEWEST:
        return None
    recorded = [one for one in waiting if one.reading.view.flight is not None]
    parted = _by_number(job, recorded)
    if parted is not None:
        return parted
    circle = solve(waiting_together(awaited)).helpless
    if len(waiting) < len(job.ranks) or job.elsewhere:
        waiting = [one for one in recorded if one.rank in circle]
    if len(waiting) < FEWEST:
        return None
    if {one.operation.name for one in waiting} <= PAIRED:
        return _by_messages(job, awaited, circle, waiting)
    if len(recorded) >= len(waiting):
        # in a function of torch whose operation ended, or began, while the job was looked at
        between_looks = (
            one.group is None
            and (wait := one.reading.wait) is not None
            and wait.name not in UNRECORDED
            and is_collective_code(wait.frame.file)
            for one in waiting
        )
        inside = [one for one, between in zip(waiting, between_looks, strict=True) if not between]
        return _by_group(job, circle, inside)
    # where not all have a record, only the call and the lines that led to it are compared
    shown = [
        replace(one, operation=Operation(wait.name)) if (wait := one.reading.wait) else one
        for one in waiting
    ]
    keys = {one: (one.operation.name, way_in(one.way)) for one in shown}
    if len(set(keys.values())) == 1:
        return None
    return _in_their_own(shown, *find_diverged(job.case.code, keys))


def parted_by_test(code: Sequence[CodeNote], divergence: Divergence) -> bool:
    """Whether a test of the rank brought some of the ranks elsewhere than others."""
    left, stayed = divergence.sides
    sides = [left, stayed]
    if not stayed:  # nothing tells who left: each way by itself
        by_way: dict[tuple[Frame, ...], list[PendingCollective]] = {}
        for one in left:
            by_way.setdefault(one.way, []).append(one)
        sides = list(by_way.values())
    for side in sides:
        others = [one for other in sides if other is not side for one in other]
        ways = ways_of(side)
        notes = attribution.separating(code, side, others)
        if tests_apart(notes, ways, ways_of(others) - ways):
            return True
    return False


def parting_tests(
    code: Sequence[CodeNote], divergence: Divergence, pending: PendingCollective
) -> list[Test]:
    """Return the tests of the rank under which one stands, but those that the others pass, too."""
    left, stayed = divergence.sides
    others = stayed if pending.rank in divergence.diverged else left
    return rank_conditions(attribution.separating(code, (pending,), others), pending.way)


# Different operations under one number of a group


def _by_number(job: JobReading, waiting: Sequence[PendingCollective]) -> Divergence | None:
    known: dict[frozenset[int], int | None] = {}
    for group, column in sorted(histories(waiting).items()):
        different = {id(history): history for history in column.values()}
        key = frozenset(different)
        if key not in known:
            known[key] = _parting_number(different.values()) if len(different) > 1 else None
        seq = known[key]
        if seq is not None:
            return _at_number(job, group, seq, column)
    return None


def _parting_number(every: Collection[History]) -> int | None:
    """Return the number under which ranks parted; None where no two operations contradict.

    An extra operation that looks as those of the steps do only moves all others on, and they meet
    something else much later. The places that operations were called from tell where it was: there
    one sequence has what the other lacks.
    """
    for seq in sorted(set().union(*(one.steps for one in every))):
        here = [one.steps[seq] for one in every if seq in one.steps]
        contradict = len({step.operation for step in _comparable(here, here)}) > 1
        if contradict and not all(one.has_ended(seq) for one in every):
            first, *others = every
            earlier = (_first_without_counterpart(first.steps, one.steps) for one in others)
            return min((seq, *(number for number in earlier if number is not None)))
    return None


def _comparable(steps: Sequence[Step], here: Collection[Step]) -> list[Step]:
    """Return steps to be compared: with roots and reductions only if all that are here have one."""
    if all(step.operation.detail for step in here):
        return list(steps)
    return [replace(one, operation=replace(one.operation, detail="")) for one in steps]


def _first_without_counterpart(one: dict[int, Step], other: dict[int, Step]) -> int | None:
    """Return the first number from which one sequence has a call that the other lacks.

    Calls from two places under one number are no more than that: ranks may go two ways to one
    operation.
    """
    noted = [[seq for seq, step in steps.items() if step.called_from] for steps in (one, other)]
    if not all(noted):
        return None
    since = max(map(min, noted))
    common = sorted(seq for seq in one.keys() & other.keys() if seq >= since)
    apart = next((at for at, seq in enumerate(common) if one[seq] != other[seq]), len(common))
    numbers = common[apart : apart + MOST_COMPARED]
    left, right = [one[seq] for seq in numbers], [other[seq] for seq in numbers]
    compared = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    for what, start, end, start_other, end_other in compared:
        if what != "equal" and end - start != end_other - start_other:
            return numbers[start] if start < len(numbers) else None
    return None


def _at_number(job: JobReading, group: str, seq: int, column: Column) -> Divergence:
    present = {one: history.steps[seq] for one, history in column.items() if seq in history.steps}
    longest = max(column.values(), key=lambda history: len(history.steps)).steps
    past = [longest[number] for number in sorted(longest) if number < seq]
    before = _comparable(past, present.values())
    steps = zip(present, _comparable([*present.values()], present.values()), strict=True)
    here = {
        one if one.numbered == (group, seq) else replace(one, way=step.called_from or one.way): step
        for one, step in steps
    }
    operations = {one: step.operation for one, step in here.items()}
    keys: Mapping[PendingCollective, Hashable] = (
        operations if len(set(operations.values())) > 1 else here
    )
    diverged, basis = find_diverged(job.case.code, keys, lambda one: (before, here[one]))
    if basis != "majority":
        as_others = attribution.did_as_like_groups(job, group, seq, operations)
        if 0 < len(as_others) < len(here):
            diverged = tuple(sorted(one.rank for one in here if one not in as_others))
            basis = "like groups"
    candidates = [*dict.fromkeys(here.values())]
    expected = attribution.expected_next(before, candidates, attribution.SURE_CONTEXT)
    of_others = {step for one, step in here.items() if one.rank not in diverged}
    return Divergence(
        pending_collectives=tuple(here),
        operations={one.rank: operation for one, operation in operations.items()},
        diverged=diverged,
        basis=basis,
        group=group,
        seq=seq,
        last_agreed=seq - 1 if before or seq == 1 else None,
        proven=True,
        due=expected in of_others,
    )


# Ranks that wait only for each other, each in something else


def _by_messages(
    job: JobReading, awaited: Awaited, circle: Collection[int], waiting: Sequence[PendingCollective]
) -> Divergence | None:
    """All receive and nobody sends, or the other way round, or each waits for the next in a ring.

    Where nobody counts messages, it is only known of ranks that all do the same.
    """
    inside = {one.rank: awaited[one.rank] for one in waiting if one.rank in circle}
    ring = solve(waiting_together(inside)).circles
    names = {one.operation.name for one in waiting}
    if not ring and (any(awaited.values()) or len(names) > 1):
        return None
    chosen = [one for one in waiting if one.rank in ring] if ring else waiting
    everybody, departed = tuple(one.rank for one in chosen), attribution.departed_in_messages(job)
    together = _in_their_own(chosen, everybody, "nothing", proven=bool(ring))
    counts = attribution.messages_of(job)
    told = (counts.get(rank) for rank in everybody)
    posted = {one and (sum(one.sent.values()), sum(one.received.values())) for one in told}
    # who leaves out a message has posted fewer: at one line, by the same steps, nobody did
    alike = together.same_way and len(posted) == 1
    if alike or not departed or not set(departed) < set(everybody):
        return together
    return replace(together, diverged=departed, basis="sequence")


def _in_their_own(
    waiting: Sequence[PendingCollective],
    diverged: tuple[int, ...],
    basis: Basis,
    *,
    proven: bool = False,
) -> Divergence:
    return Divergence(
        pending_collectives=tuple(waiting),
        operations={one.rank: one.operation for one in waiting},
        diverged=diverged,
        basis=basis,
        proven=proven,
    )


def _by_group(
    job: JobReading, circle: Collection[int], waiting: Sequence[PendingCollective]
) -> Divergence | None:
    """All wait, in different groups: nobody comes to one who waits alone in his.

    In one group and under different numbers, one is only ahead: its record is from a moment later.
    """
    helpless = {one.rank for one in waiting}.issubset(circle)
    skipped = _by_skipped(waiting) if helpless else None
    if skipped is not None or not waiting:
        return skipped
    keys: dict[PendingCollective, Hashable] = {
        one: (one.group, one.seq, one.operation.name if one.group else one.operation)
        for one in waiting
    }
    fewest = min(Counter(keys.values()).values())
    ahead = len({one.group for one in waiting}) == 1 and waiting[0].group is not None
    if ahead or len(set(keys.values())) == 1 or fewest > 1:
        return None

    def own_way(pending: PendingCollective) -> tuple[list[Hashable], Hashable]:
        """What a rank entered in all its groups before it waited, and in what it waits now."""
        every = [
            (group, entry.seq, Operation(entry.op, entry.sizes, entry.dtypes))
            for group, entry in entered(pending.reading)
        ]
        numbers = [(group, seq) for group, seq, _ in every]
        end = numbers.index(pending.numbered) if pending.numbered in numbers else len(every)
        before: list[Hashable] = [(group, operation) for group, _, operation in every[:end]]
        return before, (pending.group, pending.operation)

    diverged, basis = find_diverged(job.case.code, keys, own_way)
    silent, departed = attribution.without_message(job), attribution.departed_in_messages(job)
    here = {one.rank for one in waiting}
    if departed and set(departed) < here:
        diverged, basis = departed, "sequence"
    elif silent and set(silent) <= here:
        diverged, basis = silent, "messages"
    proven = helpless or not any(one.operation.name in PAIRED for one in waiting)
    return _in_their_own(waiting, diverged, basis, proven=proven)


# An operation that some wait for and others walked past. Two groups need not be used in one order
# by the threads of a rank, so the newest of each contradict nothing. But a rank that entered a
# later operation of the one group, and never that of the other, has passed the place where it
# belongs. That it belongs there, earlier ones tell: as many steps lay between them.


def _by_skipped(waiting: Sequence[PendingCollective]) -> Divergence | None:
    asked: set[tuple[object, int]] = set()
    for pending in waiting:
        key = pending.numbered, pending.reading.told_by_rank
        if pending.numbered is None or key in asked:
            continue
        asked.add(key)
        if passed_by := _passed_by(pending, *pending.numbered, waiting):
            there = {one for one in waiting if one.numbered == pending.numbered}
            chosen = [one for one in waiting if one in there or one.rank in passed_by]
            return Divergence(
                pending_collectives=tuple(chosen),
                operations={o.rank: o.operation if o in there else LEFT_OUT for o in chosen},
                diverged=passed_by,
                basis="sequence",
                group=pending.group,
                seq=pending.seq,
                last_agreed=pending.numbered[1] - 1,
                proven=True,
            )
    return None


def _passed_by(
    pending: PendingCollective, group: str, seq: int, waiting: Sequence[PendingCollective]
) -> tuple[int, ...]:
    """Return the ranks that are past the place where an operation belongs; none where none tells.

    The steps are those of the group that the rank used next after the operation. Where that is its
    newest, because it waits there, it is the group after the one before, unless threads may have
    come to both, or two ranks may have changed their order. Threads enter operations side by side:
    how often one comes a step later, the ranks' own past shows.
    """
    numbers = [(name, entry.seq) for name, entry in entered(pending.reading)]
    alone = all(one.reading.stuck is None for one in waiting)
    asked = [(group, seq)]
    asked += [(group, seq - 1)] if alone and len(waiting) >= attribution.FEWEST_FOR_MAJORITY else []
    afters = [numbers[numbers.index(one) + 1 :] for one in asked if one in numbers]
    steps = next((name for after in afters for name, _ in after if name != group), None)
    if steps is None:
        return ()

    def steps_at(one: PendingCollective) -> dict[int, int]:
        """For each number of the group, at which number of the other the rank was then."""
        found: dict[int, int] = {}
        newest: int | None = None
        for name, entry in entered(one.reading):
            if name == steps:
                newest = entry.seq
            elif name == group and newest is not None:
                found[entry.seq] = newest
        return found

    def last(one: PendingCollective, name: str) -> int:
        record = record_of(one.reading, name)
        return record.last_enqueued if record is not None else -1

    known = ((one, record_of(one.reading, group)) for one in waiting)
    members = [one for one, record in known if record and one.rank in (record.ranks or (one.rank,))]
    at = {one: steps_at(one) for one in members}
    own = at.get(pending, {})
    together: dict[int, list[int]] = {}  # in which steps ranks were as they entered it before
    gaps: set[int] = set()
    for found in at.values():
        for number in found.keys() & range(seq):
            together.setdefault(number, []).append(found[number])
            if number - 1 in found:
                gaps.add(found[number] - found[number - 1])
    spans = [max(one) - min(one) for one in together.values() if len(one) > 1]
    if not spans or seq not in own or seq - 1 not in own:
        return ()
    apart, own_gap = max(spans), own[seq] - own[seq - 1]
    if not any(abs(own_gap - gap) <= apart for gap in gaps):
        return ()
    return tuple(
        one.rank
        for one in members
        if last(one, group) in range(seq) and last(one, steps) > own[seq] + apart
    )
