"""Who waits and who works while all ranks are slow: a few looks at moments that follow no step.

Ranks that wait for one that is slow spend most of each step in a collective, and that one at work
of its own. That is told without timed parts, too, and names a line of the user's code.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.waits.torch_waits import FOR_RANKS, find_wait

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import Frame, Sample
    from lightning_hangcheck.model.slowness import Slowness
    from lightning_hangcheck.observe.looking import Look

GLANCES = 10
SHORTEST_S, LONGEST_S = 0.4, 1.0
GOLDEN = 0.618
"""Of the pauses between them: no step's length stays in time with it."""
ASLEEP = "S"


class Glances:
    """What was seen of each rank's main thread."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: Counter[int] = Counter()
        self._waited: Counter[int] = Counter()
        self._places: dict[int, Counter[Frame]] = {}

    @property
    def enough(self) -> bool:
        """Whether there were as many as wanted."""
        return self.count >= GLANCES

    @property
    def pause_s(self) -> float:
        """Seconds until the next one."""
        return SHORTEST_S + (LONGEST_S - SHORTEST_S) * (self.count * GOLDEN % 1)

    def take(self, look: Look) -> None:
        """Add one of them."""
        self.count += 1
        for target, sample in look.samples:
            frames = _main_frames(sample)
            if target.role != "rank" or not frames:
                continue
            self._seen[target.rank] += 1
            if _waits(sample, frames):
                self._waited[target.rank] += 1
            elif (place := users_place(frames)) is not None:
                self._places.setdefault(target.rank, Counter())[place] += 1

    def added_to(self, slowness: Slowness) -> Slowness:
        """Return the facts with what was seen of these ranks."""
        ranks = tuple(
            replace(
                one,
                looks=self._seen[one.rank],
                waited=self._waited[one.rank],
                place=self._place(one.rank),
            )
            for one in slowness.ranks
        )
        return replace(slowness, ranks=ranks)

    def _place(self, rank: int) -> Frame | None:
        most = self._places.get(rank, Counter()).most_common(1)
        return most[0][0] if most else None


def _main_frames(sample: Sample) -> tuple[Frame, ...]:
    threads = sample.stack.threads if sample.stack is not None else ()
    return threads[0].frames if threads else ()


def _waits(sample: Sample, frames: tuple[Frame, ...]) -> bool:
    """Whether its main thread waits for other ranks; backward waits only where it sleeps."""
    wait = find_wait(frames)
    if wait is None or wait.kind not in FOR_RANKS:
        return False
    state = sample.kernel.threads[0].state if sample.kernel and sample.kernel.threads else ""
    return wait.kind != "backward" or state == ASLEEP
