"""Of ranks that parted, who left? The majority tells, the rank's own past, or code under a test.

Without a majority, other groups that came the same way so far tell, then, in this order: an
exception that only one rank handles, code under a test that only one rank passes, the sequence of
operations that earlier steps followed, code under any test of the rank, a loop that the others are
still in, an operation that was never seen before, and where Lightning parks a rank that does
nothing special. The test comes before the sequence: an evaluation on one rank begins with what any
step begins with, so the others seem to diverge.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise, product
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec.structs import replace

from lightning_hangcheck.judge.frames import COLLECTIVE
from lightning_hangcheck.judge.operations import (
    PAIRED,
    Operation,
    PendingCollective,
    call_of,
    operation_of,
    record_of,
    records,
    ways_of,
)
from lightning_hangcheck.judge.records import awaited_peers
from lightning_hangcheck.judge.source import left_loop, parked_in, tests_apart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.judge.job import JobReading, RankReading
    from lightning_hangcheck.model.case import CodeNote, RankView
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.model.flight import CollectiveRecord, MessageCounts

    Key = TypeVar("Key", bound=Hashable)

Item = TypeVar("Item", bound=Hashable)
Way = tuple[Sequence[Hashable], Hashable]
"""What a rank did before, oldest first, and what it does now."""
Basis = (
    Literal["majority", "messages", "exception", "sequence", "condition"]
    | Literal["loop", "novelty", "parked", "like groups", "nothing"]
)
FEWEST_FOR_MAJORITY = 3
"""With two ranks there is no majority."""
SURE_CONTEXT = 2
"""Operations before it that must be the same for a sequence to count before anything else."""
MANY_ALIKE, FEWEST_TIMES = 16, 2
"""How often what comes round must have done so, where as many operations before it look the same
as at another place of the rhythm."""


def find_diverged(
    code: Sequence[CodeNote],
    keys: Mapping[PendingCollective, Key],
    way_of: Callable[[PendingCollective], Way | None] = lambda _: None,
) -> tuple[tuple[int, ...], Basis]:
    """Tell which ranks left.

    Args:
        code: Notes on the lines where ranks stand.
        keys: What each rank does; equal for ranks that are together.
        way_of: Tells what a rank did before, and what it does now, where recorded.

    Returns:
        Their ranks, and what showed it; all where nothing does.
    """
    together: dict[Key, list[PendingCollective]] = {}
    for one, key in keys.items():
        together.setdefault(key, []).append(one)
    sides = list(together.values())
    largest = max(sides, key=len)
    if len(keys) >= FEWEST_FOR_MAJORITY and 2 * len(largest) > len(keys):
        left = (one.rank for side in sides if side is not largest for one in side)
        return tuple(sorted(left)), "majority"
    stacks, ways = list(map(ways_of, sides)), [way_of(side[0]) for side in sides]
    often = Counter(stack for each in stacks for stack in each)

    def others(at: int) -> set[tuple[Frame, ...]]:
        return {one for one, times in often.items() if times > (one in stacks[at])}

    def under_test(at: int, notes: Sequence[CodeNote]) -> bool:
        if any(map(parked_in, stacks[at])):
            return False  # a test of the framework's own led it to where it is meant to wait
        rest = [one for side in sides if side is not sides[at] for one in side]
        return tests_apart(separating(notes, sides[at], rest), stacks[at], others(at))

    def unexpected(at: int, shortest_context: int) -> bool:
        before, now = ways[at] or ((), None)
        candidates = [way[1] for way in ways if way is not None]
        return expected_next(before, candidates, shortest_context) not in (None, now)

    def out_of_loop(at: int) -> bool:
        return all(left_loop(code, *pair) for pair in product(stacks[at], others(at)))

    of_one = [note for note in code if not note.condition_of_most]
    signs: tuple[tuple[Basis, Callable[[int], bool]], ...] = (  # the surest first
        ("exception", lambda at: all(one.reading.handling for one in sides[at])),
        ("condition", lambda at: under_test(at, of_one)),
        ("sequence", lambda at: unexpected(at, SURE_CONTEXT)),
        ("condition", lambda at: under_test(at, code)),
        ("loop", out_of_loop),
        ("novelty", lambda at: unexpected(at, 0)),
        ("parked", lambda at: not any(map(parked_in, stacks[at]))),
    )
    for basis, shows in signs:
        gone = list(filter(shows, range(len(sides))))
        if gone and len(gone) < len(sides):
            return tuple(sorted(one.rank for at in gone for one in sides[at])), basis
    return tuple(sorted(one.rank for one in keys)), "nothing"


def minority_of_one(readings: Sequence[RankReading]) -> RankReading | None:
    """Return the one rank that stands elsewhere than all the others, None if it is not one."""
    groups: dict[tuple[Frame, ...], list[RankReading]] = {}
    for reading in readings:
        groups.setdefault(reading.frames, []).append(reading)
    if len(readings) < FEWEST_FOR_MAJORITY or len(groups) != 2:
        return None
    smaller = min(groups.values(), key=len)
    return smaller[0] if len(smaller) == 1 else None


# A test of the rank is a reason only where it separates those who parted: all ranks of a sharded
# layer stand under ``rank >= 4`` on their way to it.


def separating(
    code: Sequence[CodeNote], side: Sequence[PendingCollective], others: Sequence[PendingCollective]
) -> list[CodeNote]:
    """Return the notes without tests that, as they read, ranks on both sides pass."""

    def on_both_sides(condition: str) -> bool:
        try:
            test = ast.parse(condition, mode="eval").body
            views = ([one.reading.view for one in ranks] for ranks in (side, others))
            return all(any(_value(test, view) for view in ranks) for ranks in views)
        except (SyntaxError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
            return False  # it asks for more than the rank's number

    both = {text for text in {note.condition for note in code} if text and on_both_sides(text)}
    return [replace(note, condition="") if note.condition in both else note for note in code]


_ORDERS: tuple[type[ast.cmpop], ...] = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_COMPARED = dict(zip(_ORDERS, (eq, ne, lt, le, gt, ge), strict=True))


def _value(node: ast.expr, view: RankView) -> int:
    """Work out ``dist.get_rank() % 2 == 1`` for a rank; LookupError of what is no number of it."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Call(func=inner, args=[], keywords=[]):
            return _value(inner, view)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            own = dict.fromkeys(("rank", "global_rank", "get_rank"), view.rank)
            return {**own, "local_rank": view.local_rank or 0}[name]
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _value(inner, view)
        case ast.BinOp(op=ast.Mod(), left=left, right=right):
            return _value(left, view) % _value(right, view)
        case ast.BoolOp(op=how, values=parts):
            passed = [bool(_value(one, view)) for one in parts]
            return all(passed) if isinstance(how, ast.And) else any(passed)
        case ast.Compare(left=left, ops=ops, comparators=rest):
            pairs = pairwise(_value(one, view) for one in (left, *rest))
            return all(_COMPARED[type(op)](*pair) for op, pair in zip(ops, pairs, strict=True))
    raise LookupError(type(node).__name__)


# The rank's own past: what followed where it was before, and what its messages repeated.


def expected_next(
    history: Sequence[Item], candidates: Sequence[Item], shortest_context: int
) -> Item | None:
    """Return the one candidate that followed before, where what came before was the same.

    The longest context that any candidate ever followed decides, however long: what happens every
    fifty steps is expected only by who counts them. None where several followed it, or where it
    takes more than a few operations to tell them apart, and the one followed only once: that is no
    rhythm.

    Args:
        history: What was done so far, oldest first.
        candidates: What may come next.
        shortest_context: Equal operations before it that are needed; with 0, a candidate that was
            ever seen at all is expected over those that never were.
    """
    numbers: dict[Item, int] = {}
    backwards = [numbers.setdefault(one, len(numbers)) for one in reversed(history)]
    before = [0, *reversed(_agreements(backwards)[1:])]  # of each item: what came last, too
    contexts: dict[Item, list[int]] = {}
    for follower, context in zip(history, before, strict=False):
        if follower in candidates and context >= shortest_context:
            contexts.setdefault(follower, []).append(context)
    if not contexts:
        return None
    expected = max(contexts, key=lambda one: max(contexts[one]))
    others = max((max(contexts[one]) for one in contexts if one != expected), default=-1)
    often = sum(one > others for one in contexts[expected])
    return expected if often >= (FEWEST_TIMES if others >= MANY_ALIKE else 1) else None


def _agreements(sequence: Sequence[int]) -> list[int]:
    """Return for each number of items how many agree with the beginning from there on.

    The Z-algorithm (Gusfield 1997), in time proportional to the length; 0 for the first.
    """
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
"""Steps since the departure: torch hands some messages over before the other end asks for them."""
STARTS_TRIED = 64
"""Messages at the beginning that may belong to no step: set up, or half a step in what is kept."""


def messages_of(job: JobReading) -> dict[int, MessageCounts]:
    """Return the messages that each rank has posted, where they were counted."""
    flights = ((rank, one.view.flight) for rank, one in job.ranks.items())
    return {rank: one.messages for rank, one in flights if one is not None and one.messages}


def departed_in_messages(job: JobReading) -> tuple[int, ...]:
    """Return the ranks whose newest messages depart from what their own earlier steps repeated.

    A step of a pipeline or of a halo exchange posts the same messages as the one before. Those who
    then wait for messages that never come do not depart.

    None of them where no fewer depart than follow a pattern.
    """
    breaks: dict[int, set[bool | None]] = {}  # by who tells: a pattern of peers moved is the same
    departs, follows = [], 0
    for rank, counts in messages_of(job).items():
        teller = job.ranks[rank].told_by_rank
        if teller not in breaks:
            breaks[teller] = set(map(_breaks_pattern, counts.newest))
        departs += [rank] if True in breaks[teller] else []
        follows += breaks[teller] == {False}
    return tuple(departs) if len(departs) < follows else ()


def _breaks_pattern(posted: Sequence[int]) -> bool | None:
    """Whether the newest messages of a thread break off what it repeated; None if it did not."""
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
    """Return the ranks that left out a message that most posted, and that others wait for."""
    totals: dict[int, tuple[int, int]] = {}
    for rank, counts in messages_of(job).items():
        teller = job.ranks[rank].told_by_rank
        known = totals.get(teller) or (sum(counts.sent.values()), sum(counts.received.values()))
        totals[rank] = known
    usual, often = Counter(totals.values()).most_common(1)[0] if totals else ((0, 0), 0)
    if 2 * often <= len(totals):
        return ()
    views = {rank: one.view for rank, one in job.ranks.items()}
    awaited = {
        peer
        for one in job.waiting_in(COLLECTIVE)
        if one.wait is not None and one.wait.name in PAIRED
        for peer in awaited_peers(views, one.view, one.wait.name)
    }
    return tuple(rank for rank in sorted(awaited) if totals[rank] != usual)


# Other groups of the same kind: in a device mesh the groups of one dimension do the same, each by
# itself. Two ranks of a group have no majority; what all other groups of their kind did under that
# number tells which of them left.

LEAST_ALIKE = 8
"""Operations before the one in question that must be the same: all groups begin with a few."""
MOST_GROUPS = 256
"""Compared: a mesh of a hundred thousand ranks has as many, of which few tell as much."""


def did_as_like_groups(
    job: JobReading, group: str, seq: int, here: Mapping[PendingCollective, Operation]
) -> frozenset[PendingCollective]:
    """Return the ranks that did what each other group of the same kind did under that number.

    None of them where there is no such group, or where these disagree.
    """
    owner = next((one.reading for one in here if record_of(one.reading, group)), None)
    own = record_of(owner, group) if owner is not None else None
    if owner is None or own is None:
        return frozenset()
    by_name = len({operation.name for operation in here.values()}) > 1

    def compared(operation: Operation) -> Operation:
        """Stages of a pipeline send other sizes; where names tell ranks apart these are out."""
        return Operation(operation.name, *(() if by_name else (operation.sizes, operation.dtypes)))

    def before(reading: RankReading, record: CollectiveRecord) -> dict[int, Hashable]:
        return {
            entry.seq: (entry.op, call_of(reading, entry).frames or entry.sizes)
            for entry in record.entries
            if entry.seq < seq
        }

    came, did, asked = before(owner, own), set[Operation](), {group}
    for reading, record in ((one, each) for one in job.ranks.values() for each in records(one)):
        if len(asked) > MOST_GROUPS:
            break
        if record.group in asked or len(record.ranks) != len(own.ranks):
            continue
        asked.add(record.group)
        theirs = before(reading, record)
        common = came.keys() & theirs.keys()
        alike = all(came[one] == theirs[one] for one in common)
        if record.ranks != own.ranks and len(common) >= LEAST_ALIKE and alike:
            at = (entry for entry in record.entries if entry.seq == seq)
            did |= {compared(operation_of(reading, entry)) for entry in at}
    as_they_did = (one for one, operation in here.items() if compared(operation) in did)
    return frozenset(as_they_did if len(did) == 1 else ())
