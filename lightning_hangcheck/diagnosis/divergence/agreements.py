"""How far a sequence agrees with itself, moved on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def agreements(sequence: Sequence[int]) -> list[int]:
    """Return for each number of items how many agree with the beginning from there on.

    The Z-algorithm (Gusfield 1997): in time proportional to the length.

    Returns:
        As many as there are items; 0 for the first.
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
