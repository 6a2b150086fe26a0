"""Of ranks whose ways parted, which left the common way?

The majority tells; without one, other groups that came the same way (`like_groups`), then, in this
order: code under a test that only one rank passes, the sequence of operations that earlier steps
followed, code under any test of the rank, a loop that the others are still in, an operation that
was never seen before, and where Lightning parks a rank that does nothing special. The test comes
first: an evaluation on one rank begins with what any step begins with, so the others seem to
diverge. One that all ranks but one pass leads nobody away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

from lightning_hangcheck.diagnosis.divergence.agreements import agreements
from lightning_hangcheck.diagnosis.divergence.pending_collectives import ways_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.reading.source import left_loop, parked_in, tests_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lightning_hangcheck.diagnosis.divergence.pending_collectives import PendingCollective
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.case import CodeNote

    Way = tuple[Sequence[Hashable], Hashable]
    Ways = Callable[[PendingCollective], Way | None]

    Key = TypeVar("Key", bound=Hashable)

Item = TypeVar("Item", bound=Hashable)
MANY_ALIKE = 16
FEWEST_TIMES = 2
"""How often what comes round must have done so, where as many operations before it look the same
as at another place of the rhythm."""
FEWEST_FOR_MAJORITY = 3
"""With two ranks there is no majority."""
Basis = Literal[
    "majority",
    "messages",
    "sequence",
    "condition",
    "loop",
    "novelty",
    "parked",
    "like groups",
    "nothing",
]
SURE_CONTEXT = 2
"""Operations before it that must be the same for a sequence to count before anything else."""


def find_diverged(
    code: Sequence[CodeNote], keys: Mapping[PendingCollective, Key], ways: Ways
) -> tuple[tuple[int, ...], Basis]:
    """Tell which ranks diverged.

    Args:
        code: Notes on the lines where ranks stand.
        keys: What each rank does; equal for ranks that are together.
        ways: Tells what a rank did before, and what it does now, where recorded.

    Returns:
        Their ranks, and what told it; all where nothing does.
    """
    together: dict[Key, list[PendingCollective]] = {}
    for one, key in keys.items():
        together.setdefault(key, []).append(one)
    groups = list(together.values())
    largest = max(groups, key=len)
    if len(keys) >= FEWEST_FOR_MAJORITY and 2 * len(largest) > len(keys):
        return _ranks(group for group in groups if group is not largest), "majority"
    sides = [_side(group, ways) for group in groups]
    for basis, tells in _means(code, sides):
        diverged = [group for group, side in zip(groups, sides, strict=True) if tells(side)]
        if diverged and len(diverged) < len(groups):
            return _ranks(diverged), basis
    return _ranks(groups), "nothing"


def minority_of_one(readings: Sequence[RankReading]) -> RankReading | None:
    """Return the one rank that stands elsewhere than all the others, None if it is not one."""
    groups = _by_stack(readings)
    if len(readings) < FEWEST_FOR_MAJORITY or len(groups) != 2:
        return None
    smaller = min(groups, key=len)
    return smaller[0] if len(smaller) == 1 else None


def _by_stack(readings: Sequence[RankReading]) -> list[list[RankReading]]:
    """Group ranks whose newest stacks are equal, in the order of their first rank."""
    groups: dict[tuple[Frame, ...], list[RankReading]] = {}
    for reading in readings:
        groups.setdefault(reading.frames, []).append(reading)
    return list(groups.values())


class _Side(Struct, frozen=True, eq=False):
    """Ranks that are together: the places where they stand, and what they did and do."""

    stacks: frozenset[tuple[Frame, ...]]
    way: tuple[Sequence[Hashable], Hashable] | None


def _side(group: Sequence[PendingCollective], ways: Ways) -> _Side:
    return _Side(frozenset(ways_of(group)), ways(group[0]))


def _means(
    code: Sequence[CodeNote], sides: Sequence[_Side]
) -> tuple[tuple[Basis, Callable[[_Side], bool]], ...]:
    of_sides = Counter(stack for side in sides for stack in side.stacks)

    def others(side: _Side) -> frozenset[tuple[Frame, ...]]:
        return frozenset(one for one, often in of_sides.items() if often > (one in side.stacks))

    def under_tests(side: _Side) -> bool:
        return tests_apart(code, side.stacks, others(side))

    def under_tests_of_one(side: _Side) -> bool:
        of_one = [note for note in code if not note.condition_of_most]
        return tests_apart(of_one, side.stacks, others(side))

    def out_of_loop(side: _Side) -> bool:
        pairs = product(side.stacks, others(side))
        return all(left_loop(code, stack, other) for stack, other in pairs)

    def not_parked(side: _Side) -> bool:
        return not any(parked_in(stack) for stack in side.stacks)

    return (
        ("condition", under_tests_of_one),
        ("sequence", lambda side: _unexpected(side, sides, SURE_CONTEXT)),
        ("condition", under_tests),
        ("loop", out_of_loop),
        ("novelty", lambda side: _unexpected(side, sides, 0)),
        ("parked", not_parked),
    )


def _unexpected(side: _Side, sides: Sequence[_Side], shortest_context: int) -> bool:
    """Whether ranks do something else than the steps before lead to."""
    if side.way is None:
        return False
    before, now = side.way
    candidates = [other.way[1] for other in sides if other.way is not None]
    expected = expected_next(before, candidates, shortest_context)
    return expected is not None and expected != now


def expected_next(
    history: Sequence[Item], candidates: Sequence[Item], shortest_context: int
) -> Item | None:
    """Return the one candidate that followed before, where what came before was the same.

    The longest context that any candidate ever followed decides, however long: what happens every
    fifty steps is expected only by who counts them. Where several followed it, none is expected
    more than the other. Nor where it takes more than a few operations to tell them apart, and the
    one followed only once: that is no rhythm.

    Args:
        history: What was done so far, oldest first.
        candidates: What may come next.
        shortest_context: How many equal operations before it are asked for at least; with 0, a
            candidate that was ever seen at all is expected over those that never were.
    """
    contexts: dict[Item, list[int]] = {}
    for follower, context in zip(history, _common_endings(history), strict=True):
        if follower in candidates and context >= shortest_context:
            contexts.setdefault(follower, []).append(context)
    if not contexts:
        return None
    expected = max(contexts, key=lambda one: max(contexts[one]))
    others = max((max(contexts[one]) for one in contexts if one != expected), default=-1)
    often = sum(one > others for one in contexts[expected])
    return expected if often >= (FEWEST_TIMES if others >= MANY_ALIKE else 1) else None


def _common_endings(history: Sequence[Item]) -> list[int]:
    """Return for each item how much of what came before it is what came last."""
    numbers: dict[Item, int] = {}
    backwards = [numbers.setdefault(one, len(numbers)) for one in reversed(history)]
    return [0, *reversed(agreements(backwards)[1:])][: len(history)]


def _ranks(groups: Iterable[Sequence[PendingCollective]]) -> tuple[int, ...]:
    return tuple(sorted(one.rank for group in groups for one in group))
