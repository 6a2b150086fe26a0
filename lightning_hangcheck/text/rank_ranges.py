"""Rank ranges: ``{0, 1, 2, 3, 8}`` is written ``"0-3,8"`` at any world size."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST_RANK = 10_000_000


def format_ranks(ranks: Iterable[int]) -> str:
    """Write ranks as ascending ranges.

    Args:
        ranks: Global ranks in any order; repeats count once.

    Returns:
        For example ``"0-6,8"``; the empty string for no rank.
    """
    ordered = sorted(set(ranks))
    runs = groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])
    parts = []
    for _, run in runs:
        members = [rank for _, rank in run]
        first, last = members[0], members[-1]
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def parse_ranks(text: str, most: int = LARGEST_RANK + 1) -> tuple[int, ...]:
    """Read what `format_ranks` wrote.

    Args:
        text: For example ``"0-6,8"``; blanks around numbers are allowed.
        most: How many there may be; more are not even counted out.

    Returns:
        The ranks, ascending, each once.

    Raises:
        ValueError: The text is no list of ranges of ranks from 0 to 10,000,000, or has more ranks;
            the message shows the offending part.
    """
    ranks: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ValueError(f"{part!r} is no rank or range of ranks; write for example 0-6,8")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high > LARGEST_RANK:
            raise ValueError(f"{part!r} is no ascending range of ranks up to {LARGEST_RANK}")
        if len(ranks) + high - low >= most:
            raise ValueError(f"{text[:40]!r} has more than {most} ranks")
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))
