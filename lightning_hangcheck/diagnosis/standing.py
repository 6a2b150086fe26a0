"""Which ranks stand at the same place, and which one stands alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.scene import RankReading
    from lightning_hangcheck.model.evidence import Frame

FEWEST_FOR_MAJORITY = 3
"""With two ranks there is no majority."""


def standing_apart(readings: Sequence[RankReading]) -> list[list[RankReading]]:
    """Group ranks whose newest stacks are equal, in the order of their first rank."""
    groups: dict[tuple[Frame, ...], list[RankReading]] = {}
    for reading in readings:
        groups.setdefault(reading.doing.frames, []).append(reading)
    return list(groups.values())


def lone_rank(readings: Sequence[RankReading]) -> RankReading | None:
    """Return the one rank that stands elsewhere than all the others, None if it is not one."""
    groups = standing_apart(readings)
    if len(readings) < FEWEST_FOR_MAJORITY or len(groups) != 2:
        return None
    smaller = min(groups, key=len)
    return smaller[0] if len(smaller) == 1 else None
