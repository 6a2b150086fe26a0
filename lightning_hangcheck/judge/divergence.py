"""Where ranks diverge: at which operation, since when, and which of them left.

Two ranks with different operations under one number of one group have diverged for good, as long as
one of them is still in its operation. An operation that all have completed is history. A rank that
has not come yet, or that still moves, has not diverged. `find_divergence` is called once a case;
its answer goes to the graph, the rules and the tables.

Who handles an exception that the others do not has left; else the majority tells. Without one these
signs are asked in turn: what other groups of the same kind did; code under a test that only one
rank passes; the sequence of operations of earlier steps; code under any test of the rank; a loop
that the others are still in; that sequence without what came only early; an operation never seen
before; and where Lightning parks ranks that have nothing special to do. The test comes before the
sequence: an evaluation on one rank begins with what any step begins with, so the others would seem
to diverge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain, product
from math import prod
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.frames import (
    COLLECTIVE,
    left_loop,
    parked_in,
    rank_conditions,
    rejoined,
    separating,
    tests_apart,
    users_place,
)
from lightning_hangcheck.judge.graph import helpless_in, solve
from lightning_hangcheck.judge.operations import (
    MAKING_GROUP,
    PAIRED,
    UNRECORDED,
    History,
    Operation,
    PendingCollective,
    Step,
    all_came,
    awaited_peers,
    call_of,
    entered,
    groups_of,
    helper_waits,
    histories,
    is_behind_helper,
    is_collective_code,
    operation_of,
    record_of,
    still_pending,
    waiting_together,
    way_in,
    ways_of,
)
from lightning_hangcheck.model.evidence import Frame

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lightning_hangcheck.judge.frames import Test
    from lightning_hangcheck.judge.job import JobReading, RankReading
    from lightning_hangcheck.model.case import CodeNote, RankView
    from lightning_hangcheck.model.flight import CollectiveRecord, MessageCounts

    Key = TypeVar("Key", bound=Hashable)
    Awaited = Mapping[int, tuple[int, ...]]
    """For which ranks each rank waits, as `awaited_ranks` returns it."""
    Column = dict[PendingCollective, History]

Item = TypeVar("Item", bound=Hashable)
Way = tuple[Sequence[Hashable], Hashable]
"""What a rank did before, oldest first, and what it does now."""
Basis = (
    Literal["majority", "messages", "exception", "sequence", "condition"]
    | Literal["loop", "novelty", "parked", "like groups", "group", "nothing"]
)
FEWEST_FOR_MAJORITY = 3
"""Two ranks have no majority."""
SURE_CONTEXT = 2
"""Equal operations before it that make a sequence count before any other sign."""
MANY_ALIKE, FEWEST_TIMES = 16, 2
"""If another candidate also followed after this many equal operations, the expected one must have
followed this often."""
LEAST_USUAL = 4
"""Operations from which the lines that led to most of them are usual."""
SENDS = frozenset({"send", "isend"})
LEFT_OUT = Operation("no such operation")
"""What a rank that walked past an operation did instead, by its record."""
MOST_ASKED = 64
"""Ranks, and operations of each, whose calling lines are compared."""
MOST_COMPARED = 500
"""Operations compared from the first with another call site on: as many take some 10 ms."""


class Divergence(Struct, frozen=True, kw_only=True):
    """Where ranks diverge: group and number, both None if only frames tell.

    Attributes:
        last_agreed: Number of the group's last operation that all ranks had in common; None if
            unknown.
        operations: What each rank does instead.
        diverged: Ranks that left; all of them if nothing tells.
        basis: What told which ranks left.
        proven: The flight record shows it; otherwise only frames do.
        due: Whether the others' operation was next, as in earlier steps.
        reordered: Whether all ranks entered the same operations from there on, in another order:
            two threads in one group, or several groups queued on devices.
        came_from: Frames from which ranks called the last common operation; empty frames if not
            noted.
        usual: Lines, each with its file, through which a rank called most earlier operations.
        made: Members of the group that each rank made under one number, where these differ.
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
    reordered: bool = False
    came_from: frozenset[tuple[Frame, ...]] = frozenset()
    usual: frozenset[tuple[str, int]] = frozenset()
    made: Mapping[int, tuple[int, ...]] = {}

    @property
    def sides(self) -> tuple[list[PendingCollective], list[PendingCollective]]:
        """Ranks that left, and ranks that stayed (none if nothing tells who left)."""
        gone, every = frozenset(self.diverged), self.pending_collectives
        left = [pending for pending in every if pending.rank in gone]
        return left, [pending for pending in every if pending.rank not in gone]

    @property
    def sends_cross(self) -> bool:
        """Whether each rank waits in a send to the next in a ring, as in every step before.

        No rank has left out a message yet: what each would receive comes after its send in the
        code. The order is wrong for all.
        """
        names = {operation.name for operation in self.operations.values()}
        return self.proven and self.basis == "nothing" and names <= SENDS

    @property
    def same_way(self) -> bool:
        """Whether all ranks came to their operation through the same lines of code.

        Below torch's own code one may be in a hook, or in a signal's handler.
        """
        ways = {(way_in(way), users_place(way)) for way in ways_of(self.pending_collectives)}
        return len(ways) == 1 and all(way for way, _ in ways)


def find_divergence(
    job: JobReading, pending: Mapping[int, PendingCollective], awaited: Awaited
) -> Divergence | None:
    """Find where ranks diverge; None if they do not, or if that cannot be told."""
    waiting: Sequence[PendingCollective] = still_pending(pending)
    if len(waiting) < 2:
        return None
    waiting = _rejoined(job, waiting)
    recorded = [collective for collective in waiting if collective.reading.view.flight is not None]
    known: dict[frozenset[int], int | None] = {}
    for group, column in sorted(histories(recorded).items()):
        different = {id(history): history for history in column.values()}
        key = frozenset(different)
        if key not in known:
            known[key] = _divergence_number(different.values()) if len(different) > 1 else None
        if (seq := known[key]) is not None:
            return _at_number(job, group, seq, column)
    made = _by_groups_made(job, [o for o in waiting if o.operation.name == MAKING_GROUP])
    if made is not None:
        return made
    waits = waiting_together(awaited)
    circle = helpless_in(waits)
    if len(waiting) < len(job.ranks) or job.elsewhere:
        waiting = [collective for collective in recorded if collective.rank in circle]
    if len(waiting) < 2:
        return None
    # the others may wait for ranks whose messages do not meet
    in_circles = solve(waits).circles
    closed = [collective for collective in waiting if collective.rank in in_circles] or waiting
    if {collective.operation.name for collective in closed} <= PAIRED:
        return _by_messages(job, awaited, circle, closed)
    if len(recorded) >= len(waiting):
        # not in a function of torch whose operation ended, or began, during the looks
        inside = [
            collective
            for collective in waiting
            for wait in [collective.reading.wait]
            if collective.group is not None
            or wait is None
            or wait.name in UNRECORDED
            or not is_collective_code(wait.frame.file)
        ]
        # an operation that all have entered ends, and a rank that is behind in it goes on; not if
        # entering only puts it into a device's queue
        ending = any(
            (record := record_of(collective.reading, collective.group or "")) is not None
            and not record.on_device
            and not awaited.get(collective.rank)
            for collective in inside
        )
        return None if ending else _by_group(job, circle, inside)
    # if not all have a record, only the call and the lines that led to it are compared
    shown = [
        replace(collective, operation=Operation(wait.name))
        if (wait := collective.reading.wait)
        else collective
        for collective in waiting
    ]
    keys = {collective: (collective.operation.name, way_in(collective.way)) for collective in shown}
    if len(set(keys.values())) == 1:
        return None
    return _in_their_own(shown, *find_diverged(job.case.code, keys))


def separated_by_test(code: Sequence[CodeNote], divergence: Divergence) -> bool:
    """Whether a test of the rank led some ranks elsewhere than the others."""
    left, stayed = divergence.sides
    sides = [left, stayed]
    code = _unusual(code, divergence.usual)
    if not stayed:  # nothing shows who diverged: each way by itself
        by_way: dict[tuple[Frame, ...], list[PendingCollective]] = {}
        for pending in left:
            by_way.setdefault(pending.way, []).append(pending)
        sides = list(by_way.values())
    for side in sides:
        others = [pending for other in sides if other is not side for pending in other]
        ways = ways_of(side)
        notes = separating(code, _views(side), _views(others))
        if tests_apart(notes, ways, ways_of(others) - ways):
            return True
    return False


def separating_tests(
    code: Sequence[CodeNote], divergence: Divergence, pending: PendingCollective
) -> list[Test]:
    """Return the tests of the rank that this rank passes and not all others do."""
    left, stayed = divergence.sides
    others = stayed if pending.rank in divergence.diverged else left
    code = separating(_unusual(code, divergence.usual), [pending.reading.view], _views(others))
    return rank_conditions(code, pending.way)


def _rejoined(job: JobReading, waiting: Sequence[PendingCollective]) -> Sequence[PendingCollective]:
    ways = {id(pending.way): pending.way for pending in waiting}  # represented ranks share theirs
    led = rejoined(job.case.code, set(ways.values()))
    moved = {collective: led[way] for collective, way in ways.items() if led[way] != way}
    if not moved:
        return waiting
    return [replace(pending, way=moved.get(id(pending.way), pending.way)) for pending in waiting]


def _usual_lines(different: Collection[History], seq: int) -> frozenset[tuple[str, int]]:
    """Return the lines through which a rank called most earlier operations."""
    found = set[tuple[str, int]]()
    for history in [*different][:MOST_ASKED]:
        numbers = sorted(number for number in history.steps if number < seq)[-MOST_ASKED:]
        ways = Counter(filter(None, (history.steps[number].called_from for number in numbers)))
        times = Counter[tuple[str, int]]()
        for way, often in ways.items() if ways.total() >= LEAST_USUAL else ():
            for line in {(frame.file, frame.line) for frame in way}:
                times[line] += often
        found.update(line for line, often in times.items() if 2 * often > ways.total())
    return frozenset(found)


def _unusual(code: Sequence[CodeNote], usual: Collection[tuple[str, int]]) -> Sequence[CodeNote]:
    """Return the notes, without rank tests on usual lines."""
    return [
        replace(note, condition="") if (note.file, note.line) in usual else note for note in code
    ]


def handles_anew(
    code: Sequence[CodeNote], usual: frozenset[tuple[str, int]], pending: PendingCollective
) -> bool:
    """Whether a rank handles an exception and did not work inside the handler for long."""
    if not pending.reading.handling:
        return False
    lines = usual & {(frame.file, frame.line) for frame in pending.way}
    return not any(
        test.startswith("except")
        for note in code
        if (note.file, note.line) in lines
        for test in note.branch_tests
    )


def _views(waiting: Sequence[PendingCollective]) -> list[RankView]:
    return [pending.reading.view for pending in waiting]


# Different operations under one number of a group


def _divergence_number(every: Collection[History]) -> int | None:
    """Return the number at which ranks diverged; None if no two operations contradict.

    An extra operation that looks like those of the steps only shifts all later numbers. The call
    sites tell where it was: there one sequence has a call that the other lacks.
    """
    for seq in sorted(set().union(*(history.steps for history in every))):
        here = [history.steps[seq] for history in every if seq in history.steps]
        found = (step.operation for step in _comparable(here, here))
        # a scalar and a vector of one meet: what counts is how many elements there are
        counted = {replace(each, sizes=(tuple(map(prod, each.sizes)),)) for each in found}
        if len(counted) > 1 and not all(history.has_ended(seq) for history in every):
            first, *others = every
            earlier = (_first_without_counterpart(first.steps, history.steps) for history in others)
            return min((seq, *(number for number in earlier if number is not None)))
    return None


def _comparable(steps: Sequence[Step], here: Collection[Step]) -> list[Step]:
    """Return steps to compare: with root and reduction only if every step present has them."""
    if all(step.operation.detail for step in here):
        return list(steps)
    return [replace(step, operation=replace(step.operation, detail="")) for step in steps]


def _without_varying_sizes(steps: Sequence[Step]) -> dict[Hashable, Step]:
    """Return the steps of which one call makes several sizes, each without its own.

    Padded to the longest sample, or of as many boxes as were found, they repeat no rhythm.
    """
    sizes: dict[tuple[str, tuple[Frame, ...]], set[tuple[tuple[int, ...], ...]]] = {}
    for step in steps:
        called = step.operation.name, step.called_from
        sizes.setdefault(called, set()).add(step.operation.sizes)
    return {
        step: replace(step, operation=replace(step.operation, sizes=()))
        for step in {*steps}
        if len(sizes[step.operation.name, step.called_from]) > 1
    }


def _first_without_counterpart(own: dict[int, Step], other: dict[int, Step]) -> int | None:
    """Return the first number at which one sequence has a call that the other lacks.

    Two call sites under one number prove nothing more: ranks may reach one operation on two ways.
    """
    noted = [[seq for seq, step in steps.items() if step.called_from] for steps in (own, other)]
    if not all(noted):
        return None
    since = max(map(min, noted))
    common = sorted(seq for seq in own.keys() & other.keys() if seq >= since)
    apart = next((at for at, seq in enumerate(common) if own[seq] != other[seq]), len(common))
    numbers = common[apart : apart + MOST_COMPARED]
    left, right = [own[seq] for seq in numbers], [other[seq] for seq in numbers]
    compared = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    for what, start, end, start_other, end_other in compared:
        if what != "equal" and end - start != end_other - start_other:
            return numbers[start] if start < len(numbers) else None
    return None


def _at_number(job: JobReading, group: str, seq: int, column: Column) -> Divergence:
    present = {
        pending: history.steps[seq] for pending, history in column.items() if seq in history.steps
    }
    longest = max(column.values(), key=lambda history: len(history.steps)).steps
    past = [longest[number] for number in sorted(longest) if number < seq]
    before = _comparable(past, present.values())
    steps = zip(present, _comparable([*present.values()], present.values()), strict=True)
    here = {
        pending
        if pending.numbered == (group, seq)
        else replace(pending, way=step.called_from or pending.way): step
        for pending, step in steps
    }
    here = dict(zip(_rejoined(job, [*here]), here.values(), strict=True))
    operations = {pending: step.operation for pending, step in here.items()}
    keys: Mapping[PendingCollective, Hashable] = (
        operations if len(set(operations.values())) > 1 else here
    )
    different = {id(history): history for history in column.values()}.values()
    usual = _usual_lines(different, seq)
    code = _unusual(job.case.code, usual)
    sized = _without_varying_sizes([*before, *here.values()])
    diverged, basis = find_diverged(
        code, keys, lambda pending: (before, here[pending]), usual, sized
    )
    if basis != "majority":
        as_others = did_as_like_groups(job, group, seq, operations)
        if 0 < len(as_others) < len(here):
            diverged = tuple(sorted(pending.rank for pending in here if pending not in as_others))
            basis = "like groups"
    from_here = [
        Counter(step.operation for number, step in history.steps.items() if number >= seq)
        for history in different
    ]
    reordered = (
        len(set(operations.values())) > 1
        and all(counted == from_here[0] for counted in from_here)
        and all(helper_waits(pending.reading.view) for pending in here)
    )
    if reordered and basis in ("novelty", "parked"):  # the others reached it, too
        diverged, basis = tuple(sorted(pending.rank for pending in here)), "nothing"
    candidates = [*dict.fromkeys(here.values())]
    expected = expected_next(before, candidates, SURE_CONTEXT, 1)
    of_others = {step for pending, step in here.items() if pending.rank not in diverged}
    return Divergence(
        pending_collectives=tuple(here),
        operations={pending.rank: operation for pending, operation in operations.items()},
        diverged=diverged,
        basis=basis,
        group=group,
        seq=seq,
        last_agreed=seq - 1 if before or seq == 1 else None,
        proven=True,
        due=expected in of_others,
        reordered=reordered,
        came_from=frozenset(
            history.steps[seq - 1].called_from for history in different if seq - 1 in history.steps
        ),
        usual=usual,
    )


def _by_groups_made(job: JobReading, making: Sequence[PendingCollective]) -> Divergence | None:
    """Ranks make a group that others will never make under its number.

    torch numbers groups as a process makes them, and ranks meet under that number. So each rank
    must make every group, also one that it does not belong to.
    """
    # ranks of one representative know the same groups
    representatives = {pending.rank: pending.reading.representative for pending in making}
    makers = {pending.reading.representative: pending.reading for pending in reversed(making)}
    now = {maker: groups_of(reading.view)[-1:] for maker, reading in makers.items()}
    wanted = {(group.group, group.ranks) for groups in now.values() for group in groups}
    for name, members in sorted(wanted, key=lambda group: (len(group[0]), group)):
        theirs = {
            maker: record.ranks
            for maker, reading in makers.items()
            if (record := record_of(reading, name)) is not None
        }
        made, past = dict[int, tuple[int, ...]](), False
        for rank, maker in representatives.items():
            if maker in theirs:
                made[rank] = theirs[maker]
                elsewhere = now[maker] and now[maker][0].group != name
                past = past or bool(rank in members and made[rank] != members and elsewhere)
        if not past:
            continue
        chosen = [pending for pending in making if pending.rank in made]
        basis: Basis = "nothing"
        if made.keys() >= {*members}:  # else ranks that are yet to come may make another majority
            keys = {pending: made[pending.rank] for pending in chosen}
            diverged, basis = find_diverged(job.case.code, keys)
        if basis != "majority":
            left_out = [rank for rank in made if made.keys() - {*made[rank]}]
            diverged, basis = tuple(sorted(made)), "nothing"
            if left_out and len(left_out) < len(made):
                diverged, basis = tuple(sorted(left_out)), "group"
        return Divergence(
            pending_collectives=tuple(chosen),
            operations={rank: Operation(MAKING_GROUP, (of,)) for rank, of in made.items()},
            diverged=diverged,
            basis=basis,
            group=name,
            proven=True,
            made=made,
        )
    return None


# Ranks that wait only for each other, in different operations


def _by_messages(
    job: JobReading, awaited: Awaited, circle: Collection[int], waiting: Sequence[PendingCollective]
) -> Divergence | None:
    """All ranks receive and none sends, or all send, or each waits for the next in a ring.

    Without counts of messages this is known only of ranks that all do the same.
    """
    inside = {pending.rank: awaited[pending.rank] for pending in waiting if pending.rank in circle}
    ring = solve(waiting_together(inside)).circles
    names = {pending.operation.name for pending in waiting}
    if not ring and (any(awaited.values()) or len(names) > 1):
        return None
    chosen = [pending for pending in waiting if pending.rank in ring] if ring else waiting
    everybody, departed = tuple(pending.rank for pending in chosen), departed_in_messages(job)
    together = _in_their_own(chosen, everybody, "nothing", proven=bool(ring))
    counts = messages_of(job)
    posted = {own and own.posted for own in map(counts.get, everybody)}
    # a rank that leaves out a message has posted fewer: at one line, after equal steps, none did
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
        operations={pending.rank: pending.operation for pending in waiting},
        diverged=diverged,
        basis=basis,
        proven=proven,
    )


def _by_group(
    job: JobReading, circle: Collection[int], waiting: Sequence[PendingCollective]
) -> Divergence | None:
    """All ranks wait, in different groups: nobody comes to a rank that waits alone in its group.

    With one group and different numbers, a rank is only ahead: its record was read a moment later.
    """
    helpless = {collective.rank for collective in waiting}.issubset(circle)
    skipped = _by_skipped(job, waiting) if helpless else None
    if skipped is not None or not waiting:
        return skipped
    keys: dict[PendingCollective, Hashable] = {
        collective: (
            collective.group,
            collective.seq,
            collective.operation.name if collective.group else collective.operation,
        )
        for collective in waiting
    }
    fewest = min(Counter(keys.values()).values())
    ahead = len({collective.group for collective in waiting}) == 1 and waiting[0].group is not None
    if ahead or len(set(keys.values())) == 1 or fewest > 1:
        return None

    def own_way(pending: PendingCollective) -> tuple[list[Hashable], Hashable]:
        """What a rank entered in all its groups before its wait, and what it waits in now."""
        every = [
            (group, entry.seq, Operation(entry.op, entry.sizes, entry.dtypes))
            for group, entry in entered(pending.reading)
        ]
        numbers = [(group, seq) for group, seq, _ in every]
        end = numbers.index(pending.numbered) if pending.numbered in numbers else len(every)
        before: list[Hashable] = [(group, operation) for group, _, operation in every[:end]]
        return before, (pending.group, pending.operation)

    diverged, basis = find_diverged(job.case.code, keys, own_way)
    meeting = [each.rank for each in waiting if each.operation.name not in PAIRED]
    few = len(waiting) >= FEWEST_FOR_MAJORITY and 0 < 2 * len(meeting) < len(waiting)
    if basis == "nothing" and helpless and few:  # most exchange messages, each with another peer
        diverged, basis = tuple(meeting), "majority"
    silent, departed = without_message(job), departed_in_messages(job)
    here = {collective.rank for collective in waiting}
    if any(is_behind_helper(collective.reading) for collective in waiting):
        # the order in which threads called is chance
        diverged, basis = tuple(collective.rank for collective in waiting), "nothing"
    if departed and set(departed) < here:
        diverged, basis = departed, "sequence"
    elif silent and set(silent) <= here:
        diverged, basis = silent, "messages"
    proven = helpless or not any(collective.operation.name in PAIRED for collective in waiting)
    views = job.views
    crossed = all(
        (record := record_of(collective.reading, collective.group or "")) is not None
        and record.on_device
        and collective.seq is not None
        and all_came(views, record, collective.seq)
        for collective in waiting
    )
    found = _in_their_own(waiting, diverged, basis, proven=proven)
    return replace(found, reordered=crossed)


# An operation that some ranks wait for and others walked past. Threads of a rank may use two groups
# in any order, so the newest operations of both contradict nothing. But a rank that entered a later
# operation of the one group, and never this one, has passed the place where it belongs. Earlier
# operations show that place: as many steps lay between them.


def _by_skipped(job: JobReading, waiting: Sequence[PendingCollective]) -> Divergence | None:
    # represented ranks are in groups of their own, each as its representative is
    different = {
        (collective.seq, collective.reading.representative): collective
        for collective in reversed(waiting)
        if collective.numbered is not None
    }
    asked = [*different.values()][::-1]
    alone = all(collective.reading.stuck is None for collective in waiting)
    before = int(alone and len(waiting) >= FEWEST_FOR_MAJORITY)
    signs: Iterator[tuple[Basis, PendingCollective, tuple[int, ...]]] = chain(
        (("sequence", each, _passed_by(each, waiting, before)) for each in asked),
        (("like groups", each, left_out_unlike_groups(job, each)) for each in asked),
    )
    for basis, pending, passed_by in signs:
        if not passed_by:
            continue
        there = {collective for collective in waiting if collective.numbered == pending.numbered}
        chosen = [
            collective
            for collective in waiting
            if collective in there or collective.rank in passed_by
        ]
        return Divergence(
            pending_collectives=tuple(chosen),
            operations={o.rank: o.operation if o in there else LEFT_OUT for o in chosen},
            diverged=passed_by,
            basis=basis,
            group=pending.group,
            seq=pending.seq,
            last_agreed=(pending.seq or 1) - 1,
            proven=True,
        )
    return None


def _passed_by(
    pending: PendingCollective, waiting: Sequence[PendingCollective], before: int
) -> tuple[int, ...]:
    """Return the ranks that went past the place of an operation; empty if nothing tells.

    The pace is set by the group that the rank used next after the operation. If the operation is
    the rank's newest, the group after an earlier number is taken, at most ``before`` numbers back.
    Two ranks alone may only have changed their order. Threads enter operations side by side: how
    often one comes a step later is taken from the ranks' own past.
    """
    group, seq = pending.numbered or ("", 0)
    numbers = [(name, entry.seq) for name, entry in entered(pending.reading)]
    places = {number: at for at, number in enumerate(numbers)}
    asked = ((group, number) for number in range(seq, seq - before - 1, -1))
    afters = (numbers[places[number] + 1 :] for number in asked if number in places)
    steps = next((name for after in afters for name, _ in after if name != group), None)
    if steps is None:
        return ()

    def steps_at(collective: PendingCollective) -> dict[int, int]:
        """Map each number of the group to the other group's number at that time."""
        found: dict[int, int] = {}
        newest: int | None = None
        for name, entry in entered(collective.reading):
            if name == steps:
                newest = entry.seq
            elif name == group and newest is not None:
                found[entry.seq] = newest
        return found

    def last(collective: PendingCollective, name: str) -> int:
        record = record_of(collective.reading, name)
        return record.last_enqueued if record is not None else -1

    known = ((collective, record_of(collective.reading, group)) for collective in waiting)
    members = [
        collective
        for collective, record in known
        if record and collective.rank in (record.ranks or (collective.rank,))
    ]
    at = {member: steps_at(member) for member in members}
    own = at.get(pending, {})
    together: dict[int, list[int]] = {}  # steps of ranks when they entered it before
    gaps: set[int] = set()
    for found in at.values():
        for number in found.keys() & range(seq):
            together.setdefault(number, []).append(found[number])
            if number - 1 in found:
                gaps.add(found[number] - found[number - 1])
    spans = [max(numbers) - min(numbers) for numbers in together.values() if len(numbers) > 1]
    if not spans or seq not in own or seq - 1 not in own:
        return ()
    apart, own_gap = max(spans), own[seq] - own[seq - 1]
    if not any(abs(own_gap - gap) <= apart for gap in gaps):
        return ()
    return tuple(
        member.rank
        for member in members
        if last(member, group) in range(seq) and last(member, steps) > own[seq] + apart
    )


# Which ranks diverged.


def find_diverged(
    code: Sequence[CodeNote],
    keys: Mapping[PendingCollective, Key],
    way_of: Callable[[PendingCollective], Way | None] = lambda _: None,
    usual: frozenset[tuple[str, int]] = frozenset(),
    alike: Mapping[Hashable, Hashable] | None = None,
) -> tuple[tuple[int, ...], Basis]:
    """Tell which ranks left, and what showed it; all ranks if nothing does.

    Args:
        code: Notes on the lines where ranks stand.
        keys: What each rank does; equal for ranks that are together.
        way_of: Returns what a rank did before and does now, if recorded.
        usual: As in `Divergence`.
        alike: What some items of the ways count as where nothing repeats exactly.
    """
    together: dict[Key, list[PendingCollective]] = {}
    for pending, key in keys.items():
        together.setdefault(key, []).append(pending)
    sides = list(together.values())
    largest = max(sides, key=len)
    has_majority = len(keys) >= FEWEST_FOR_MAJORITY and 2 * len(largest) > len(keys)
    stacks, ways = list(map(ways_of, sides)), [way_of(side[0]) for side in sides]
    often = Counter(stack for each in stacks for stack in each)

    def others(at: int) -> set[tuple[Frame, ...]]:
        return {stack for stack, times in often.items() if times > (stack in stacks[at])}

    def under_test(at: int, notes: Sequence[CodeNote]) -> bool:
        if any(map(parked_in, stacks[at])):
            return False  # a framework's own test led it to where it should wait
        rest = [pending for side in sides if side is not sides[at] for pending in side]
        apart = separating(notes, _views(sides[at]), _views(rest))
        return tests_apart(apart, stacks[at], others(at))

    def unexpected(
        at: int,
        shortest_context: int,
        fewest: int = FEWEST_TIMES,
        *,
        settled: bool = False,
        loosely: bool = False,
    ) -> bool:
        before, now = ways[at] or ((), None)
        candidates = [way[1] for way in ways if way is not None]
        if loosely and alike:
            before, now = [alike.get(item, item) for item in before], alike.get(now, now)
            candidates = [alike.get(item, item) for item in candidates]
        if settled:
            rhythm = {*candidates, *before[len(before) // 2 :]}
            before = [item for item in before if item in rhythm]
        return expected_next(before, candidates, shortest_context, fewest) not in (None, now)

    def out_of_loop(at: int) -> bool:
        return all(left_loop(code, *pair) for pair in product(stacks[at], others(at)))

    of_one = [note for note in code if not note.condition_of_most]
    signs: tuple[tuple[Basis, Callable[[int], bool]], ...] = (  # the surest first
        ("exception", lambda at: all(handles_anew(code, usual, pending) for pending in sides[at])),
        ("majority", lambda at: has_majority and sides[at] is not largest),
        ("condition", lambda at: under_test(at, of_one)),
        ("sequence", lambda at: unexpected(at, SURE_CONTEXT)),
        ("condition", lambda at: under_test(at, code)),
        ("sequence", lambda at: unexpected(at, SURE_CONTEXT, 1)),
        ("sequence", lambda at: unexpected(at, SURE_CONTEXT, 1, loosely=True)),
        ("loop", out_of_loop),
        # without what came only at the job's start, such as DDP settling its buckets
        ("sequence", lambda at: unexpected(at, SURE_CONTEXT, 1, settled=True)),
        ("novelty", lambda at: unexpected(at, 0)),
        ("parked", lambda at: not any(map(parked_in, stacks[at]))),
    )
    for basis, shows in signs:
        gone = list(filter(shows, range(len(sides))))
        if gone and len(gone) < len(sides):
            return tuple(sorted(pending.rank for at in gone for pending in sides[at])), basis
    return tuple(sorted(pending.rank for pending in keys)), "nothing"


def minority_of_one(readings: Sequence[RankReading]) -> RankReading | None:
    """Return the one rank that stands elsewhere than all others, or None."""
    groups: dict[tuple[Frame, ...], list[RankReading]] = {}
    for reading in readings:
        groups.setdefault(reading.frames, []).append(reading)
    if len(readings) < FEWEST_FOR_MAJORITY or len(groups) != 2:
        return None
    smaller = min(groups.values(), key=len)
    return smaller[0] if len(smaller) == 1 else None


# The rank's own past: what followed its present place before, and what its messages repeated.


def expected_next(
    history: Sequence[Item],
    candidates: Sequence[Item],
    shortest_context: int,
    fewest: int = FEWEST_TIMES,
) -> Item | None:
    """Return the one candidate that followed before, after the same operations; or None.

    The longest context after which any candidate followed decides: what happens every fifty steps
    is expected only by counting them. None if several candidates followed it, or if more than a few
    operations are needed to tell them apart and the candidate followed only once: that is no
    rhythm. With a ``shortest_context`` of 0, a candidate seen before is preferred to one that never
    was.
    """
    numbers: dict[Item, int] = {}
    backwards = [numbers.setdefault(item, len(numbers)) for item in reversed(history)]
    before = [0, *reversed(_agreements(backwards)[1:])]  # as many before each match the end
    contexts: dict[Item, list[int]] = {}
    for follower, context in zip(history, before, strict=False):
        if follower in candidates and context >= shortest_context:
            contexts.setdefault(follower, []).append(context)
    if not contexts:
        return None
    expected = max(contexts, key=lambda item: max(contexts[item]))
    others = max((max(contexts[item]) for item in contexts if item != expected), default=-1)
    often = sum(context > others for context in contexts[expected])
    if often >= (fewest if others >= MANY_ALIKE else 1):
        return expected
    begins = shortest_context == 0 and history.index(history[-1]) == len(history) - 1
    return min(contexts, key=history.index) if begins else None


def _agreements(sequence: Sequence[int]) -> list[int]:
    """For each number of items, how many from there agree with the beginning (Z-algorithm)."""
    size = len(sequence)
    agrees = [0] * size
    left = right = 0
    for moved in range(1, size):
        length = min(right - moved, agrees[moved - left]) if moved < right else 0
        while moved + length < size and sequence[length] == sequence[moved + length]:
            length += 1
        agrees[moved] = length
        if moved + length > right:
            left, right = moved, moved + length
    return agrees


FEWEST_REPEATED = 3
"""How often messages of a step must have been repeated to be a pattern."""
MOST_SINCE = 2
"""Steps since the divergence: torch hands some messages over before the other end asks for them."""
STARTS_TRIED = 64
"""Messages at the beginning that may belong to no step: setup, or half a step in a cut record."""


def messages_of(job: JobReading) -> dict[int, MessageCounts]:
    """Return how many messages each rank has posted, if counted."""
    flights = ((rank, reading.view.flight) for rank, reading in job.ranks.items())
    return {
        rank: flight.messages for rank, flight in flights if flight is not None and flight.messages
    }


def departed_in_messages(job: JobReading) -> tuple[int, ...]:
    """Return the ranks whose newest messages break the pattern of their own earlier steps.

    A pipeline posts the same messages in every step. Empty if not fewer ranks break it than follow
    it.
    """
    breaks: dict[int, set[bool | None]] = {}  # by representative: shifted peers are equal
    departs, follows = [], 0
    for rank, counts in messages_of(job).items():
        representative = job.ranks[rank].representative
        if representative not in breaks:
            breaks[representative] = set(map(_breaks_pattern, counts.newest))
        departs += [rank] if True in breaks[representative] else []
        follows += breaks[representative] == {False}
    return tuple(departs) if len(departs) < follows else ()


def _breaks_pattern(posted: Sequence[int]) -> bool | None:
    """Whether a thread's newest messages break off what it repeated; None if nothing repeated."""
    for start in range(min(STARTS_TRIED, len(posted))):
        kept = posted[start:]
        period = end = 0
        for moved, length in enumerate(_agreements(kept)):
            if length >= moved > 0 and moved + length > end:
                period, end = moved, moved + length
        if period and end >= FEWEST_REPEATED * period and 2 * end >= len(kept):
            since = len(kept) - end
            return since > 0 if since <= MOST_SINCE * period else None
    return None


def without_message(job: JobReading) -> tuple[int, ...]:
    """Return the ranks that left out a message which most posted and others wait for."""
    totals = {rank: counts.posted for rank, counts in messages_of(job).items()}
    usual, often = Counter(totals.values()).most_common(1)[0] if totals else ((0, 0), 0)
    if 2 * often <= len(totals):
        return ()
    views = job.views
    awaited = {
        peer
        for reading in job.waiting_in(COLLECTIVE)
        if reading.wait is not None and reading.wait.name in PAIRED
        for peer in awaited_peers(views, reading.view, reading.wait.name)
    }
    return tuple(rank for rank in sorted(awaited) if totals[rank] != usual)


# Other groups of the same kind: in a device mesh the groups of one dimension do the same, each by
# itself. A group of two ranks has no majority, but what all other groups of its kind did under that
# number shows which of the two diverged.

LEAST_ALIKE = 8
"""Equal operations before the one in question: all groups begin with a few equal ones."""
MOST_GROUPS = 256
"""Groups that are compared: a mesh of a hundred thousand ranks has more, but a few show as much."""


def did_as_like_groups(
    job: JobReading, group: str, seq: int, here: Mapping[PendingCollective, Operation]
) -> frozenset[PendingCollective]:
    """Return the ranks that did what every other group of the same kind did at that number.

    Empty if there is no such group, or if these groups disagree.
    """
    owner = next((pending.reading for pending in here if record_of(pending.reading, group)), None)
    by_name = len({operation.name for operation in here.values()}) > 1

    def compared(operation: Operation) -> Operation:
        """Pipeline stages send different sizes: sizes are left out if names tell ranks apart."""
        return Operation(operation.name, *(() if by_name else (operation.sizes, operation.dtypes)))

    like = _like_groups(job, owner, group, seq) if owner is not None else ()
    did = {
        compared(operation_of(reading, entry))
        for reading, record in like
        for entry in record.entries
        if entry.seq == seq
    }
    as_they_did = (pending for pending, operation in here.items() if compared(operation) in did)
    return frozenset(as_they_did if len(did) == 1 else ())


def left_out_unlike_groups(job: JobReading, pending: PendingCollective) -> tuple[int, ...]:
    """Return the ranks that have not entered what every other group of the kind has entered.

    Empty if there is no such group, or if one of these groups has not come that far either. A rank
    that has since entered only what comes before the operation is kept from it, and left out
    nothing.
    """
    group, seq = pending.numbered or ("", 0)
    like = list(_like_groups(job, pending.reading, group, seq))
    if not like or any(record.newest < seq for _, record in like):
        return ()
    own = ((rank, record_of(reading, group)) for rank, reading in job.ranks.items())
    asker = _between(pending.reading, group, seq)

    def is_kept(rank: int) -> bool:
        since = _between(job.ranks[rank], group, seq)
        return bool(since) and since == asker[: len(since)]

    return tuple(
        rank
        for rank, record in own
        if record and rank in record.ranks and record.newest < seq and not is_kept(rank)
    )


def _between(reading: RankReading, group: str, seq: int) -> list[Hashable]:
    """Return what a rank entered after the group's previous operation, up to this one."""
    every = entered(reading)
    places = {(name, entry.seq): at for at, (name, entry) in enumerate(every)}
    between = every[places.get((group, seq - 1), -1) + 1 : places.get((group, seq))]
    return [(entry.op, way_in(call_of(reading, entry).frames)) for _, entry in between]


def _like_groups(
    job: JobReading, owner: RankReading, group: str, seq: int
) -> Iterator[tuple[RankReading, CollectiveRecord]]:
    """Yield other groups that did the same before that number, each as one member recorded it."""
    known: dict[int, dict[int, Hashable]] = {}  # represented ranks share their entries

    def before(reading: RankReading, record: CollectiveRecord) -> dict[int, Hashable]:
        key = id(record.entries)
        if key not in known:
            known[key] = {
                entry.seq: (entry.op, call_of(reading, entry).frames or entry.sizes)
                for entry in record.entries
                if entry.seq < seq
            }
        return known[key]

    own, asked = record_of(owner, group), {group}
    came = before(owner, own) if own is not None else {}
    for reading, record in (
        (rank, each) for rank in job.ranks.values() for each in groups_of(rank.view)
    ):
        if own is None or len(asked) > MOST_GROUPS:
            break
        outside = reading.rank not in record.ranks  # every rank makes the group, and records that
        if outside or record.group in asked or len(record.ranks) != len(own.ranks):
            continue
        asked.add(record.group)
        theirs = before(reading, record)
        common = came.keys() & theirs.keys()
        alike = all(came[number] == theirs[number] for number in common)
        if record.ranks != own.ranks and len(common) >= LEAST_ALIKE and alike:
            yield reading, record
