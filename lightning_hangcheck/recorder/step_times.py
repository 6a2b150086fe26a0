"""How long the steps of a loop took: count, total, longest."""

from __future__ import annotations

from msgspec import Struct

MOST_NAMES = 64
"""Names that are kept apart; a name with a number in it would else fill the memory."""
OTHERS = "others"
MOST_SHOWN = 6


class Times(Struct):
    """Durations of one kind of step, in seconds."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Take one more."""
        self.count += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def join(self, other: Times) -> None:
        """Take all of another's."""
        self.count += other.count
        self.total_s += other.total_s
        self.longest_s = max(self.longest_s, other.longest_s)

    def __str__(self) -> str:
        return f"{self.count}x, {self.total_s:.3g} s in all, longest {self.longest_s:.3g} s"


class StepTimes:
    """Durations by the name of the step, in the order in which they first came."""

    def __init__(self) -> None:
        self.by_name: dict[str, Times] = {}

    def of(self, name: str) -> Times:
        """The times of this step, begun if it is new."""
        found = self.by_name.get(name)
        if found is None:
            name = name if len(self.by_name) < MOST_NAMES else OTHERS
            found = self.by_name.setdefault(name, Times())
        return found

    def join(self, other: StepTimes) -> None:
        """Take all of another's."""
        for name, times in other.by_name.items():
            self.of(name).join(times)

    def __str__(self) -> str:
        """The steps that took most, for example ``; get observation 41x, ...``."""
        most = sorted(self.by_name.items(), key=lambda one: -one[1].total_s)
        shown = "".join(f"; {name} {times}" for name, times in most[:MOST_SHOWN])
        return shown + ("; ..." if len(most) > MOST_SHOWN else "")
