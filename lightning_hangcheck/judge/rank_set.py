"""Sets of ranks as a few numbers: first and last of each range, ascending, all in one tuple. Pure.

A hundred thousand ranks that do the same are told with a handful of numbers, and joined without
listing any of them.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

RankSet = tuple[int, ...]
"""``(0, 6, 8, 8)`` is 0 to 6, and 8."""


def rank_set(ranks: Iterable[int]) -> RankSet:
    """Return the set of these ranks, in any order."""
    return joined((rank, rank) for rank in ranks)


def joined(sets: Iterable[RankSet]) -> RankSet:
    """Return the ranks that are in any of these sets."""
    pairs = sorted(chain.from_iterable(map(_pairs, sets)))
    found: list[int] = []
    for first, last in pairs:
        if found and first <= found[-1] + 1:
            found[-1] = max(found[-1], last)
        else:
            found += (first, last)
    return tuple(found)


def common(one: RankSet, other: RankSet) -> RankSet:
    """Return the ranks that are in both sets."""
    found: list[int] = []
    left, right = list(_pairs(one))[::-1], list(_pairs(other))[::-1]
    while left and right:
        first, last = max(left[-1][0], right[-1][0]), min(left[-1][1], right[-1][1])
        found += (first, last) if first <= last else ()
        (left if left[-1][1] == last else right).pop()
    return tuple(found)


def size(ranks: RankSet) -> int:
    """Return how many ranks a set has."""
    return sum(last - first + 1 for first, last in _pairs(ranks))


def members(ranks: RankSet) -> Iterator[int]:
    """Return the ranks of a set, ascending."""
    return chain.from_iterable(range(first, last + 1) for first, last in _pairs(ranks))


def in_words(ranks: RankSet) -> str:
    """Write a set as `text.shown` does: ``0-6,8``."""
    pairs = _pairs(ranks)
    return ",".join(str(one) if one == last else f"{one}-{last}" for one, last in pairs)


def is_rank_set(numbers: Sequence[int], most: int) -> bool:
    """Whether numbers that a stranger sent are a set of ranks below a limit."""
    starts, ends = numbers[::2], numbers[1::2]
    ordered = all(first <= last for first, last in zip(starts, ends, strict=False))
    apart = all(last < first for last, first in zip((-1, *ends), (*starts, most), strict=False))
    return len(numbers) % 2 == 0 and ordered and apart


def _pairs(ranks: RankSet) -> Iterator[tuple[int, int]]:
    return zip(ranks[::2], ranks[1::2], strict=True)
