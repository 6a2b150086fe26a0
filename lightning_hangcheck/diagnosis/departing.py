"""Of ranks that parted, which left the common way?

The majority tells; without one, in this order: code under a test of the rank, the sequence of
operations that earlier steps followed, a loop that the others are still in, an operation that was
never seen before, and where Lightning parks a rank that does nothing special. The test comes first:
an evaluation on one rank begins with what any step begins with, so the others seem to depart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

from lightning_hangcheck.diagnosis.code_reading import left_loop, parked_in, rank_conditions
from lightning_hangcheck.diagnosis.op_patterns import expected_next
from lightning_hangcheck.diagnosis.standing import FEWEST_FOR_MAJORITY
from lightning_hangcheck.diagnosis.standings import Operation
from lightning_hangcheck.model.evidence import Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from lightning_hangcheck.diagnosis.standings import Standing
    from lightning_hangcheck.model.code_note import CodeNote

    Ways = Mapping[Standing, tuple[Sequence[Operation], Operation]]
    Key = TypeVar("Key", bound=Hashable)

Telling = Literal["majority", "sequence", "condition", "loop", "novelty", "parked", "nothing"]
SURE_CONTEXT = 2
"""Operations before it that must be the same for a sequence to count before anything else."""


def who_departed(
    code: Sequence[CodeNote], keys: Mapping[Standing, Key], ways: Ways
) -> tuple[tuple[int, ...], Telling]:
    """Tell which ranks departed.

    Args:
        code: Notes on the lines where ranks stand.
        keys: What each rank does; equal for ranks that are together.
        ways: What each rank did before, and what it does now, where recorded.

    Returns:
        Their ranks, and what told it; all where nothing does.
    """
    together: dict[Key, list[Standing]] = {}
    for one, key in keys.items():
        together.setdefault(key, []).append(one)
    groups = list(together.values())
    largest = max(groups, key=len)
    if len(keys) >= FEWEST_FOR_MAJORITY and 2 * len(largest) > len(keys):
        return _ranks(group for group in groups if group is not largest), "majority"
    sides = [_side(group, ways) for group in groups]
    for telling, tells in _means(code, sides):
        departed = [group for group, side in zip(groups, sides, strict=True) if tells(side)]
        if departed and len(departed) < len(groups):
            return _ranks(departed), telling
    return _ranks(groups), "nothing"


class _Side(Struct, frozen=True, eq=False):
    """Ranks that are together: the places where they stand, and what they did and do."""

    stacks: frozenset[tuple[Frame, ...]]
    way: tuple[Sequence[Operation], Operation] | None


def _side(group: Sequence[Standing], ways: Ways) -> _Side:
    stacks = frozenset(one.reading.doing.frames for one in group)
    return _Side(stacks, ways.get(group[0]))


def _means(
    code: Sequence[CodeNote], sides: Sequence[_Side]
) -> tuple[tuple[Telling, Callable[[_Side], bool]], ...]:
    def others(side: _Side) -> frozenset[tuple[Frame, ...]]:
        return frozenset().union(*(other.stacks for other in sides if other is not side))

    def in_condition(side: _Side) -> bool:
        elsewhere = {test for stack in others(side) for test in rank_conditions(code, stack)}
        return all(set(rank_conditions(code, stack)) - elsewhere for stack in side.stacks)

    def out_of_loop(side: _Side) -> bool:
        pairs = product(side.stacks, others(side))
        return all(left_loop(code, stack, other) for stack, other in pairs)

    def not_parked(side: _Side) -> bool:
        return not any(parked_in(stack) for stack in side.stacks)

    return (
        ("condition", in_condition),
        ("sequence", lambda side: _unexpected(side, sides, SURE_CONTEXT)),
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


def _ranks(groups: Iterable[Sequence[Standing]]) -> tuple[int, ...]:
    return tuple(sorted(one.rank for group in groups for one in group))
