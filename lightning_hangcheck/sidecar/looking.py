"""Looks: samples of all ranks and their children, taken beside the loop so that it never waits."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.model.evidence import Gap, Sample
from lightning_hangcheck.probes.sample import Subject, sample_all

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["rank", "worker", "child"]
MOST_CHILDREN = 16
"""Children looked at per rank; a DataLoader with more workers shows the same stack in each."""


class Target(Struct, frozen=True, kw_only=True):
    """A process to look at, for a rank.

    Attributes:
        python: Whether it can have Python stacks.
    """

    rank: int
    pid: int
    role: Role
    index: int = 0
    python: bool = True


class Look(Struct, frozen=True):
    """What one look brought."""

    samples: tuple[tuple[Target, Sample], ...]
    gaps: tuple[Gap, ...]


class Looker:
    """Takes one look at a time in a thread of its own."""

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="look")
        self._pending: Future[Look] | None = None

    @property
    def looking(self) -> bool:
        """Whether a look is under way."""
        return self._pending is not None

    def begin(self, targets: Sequence[Target]) -> None:
        """Begin a look; its result comes from `finished`."""
        self._pending = self._thread.submit(_look, tuple(targets), self._time_limit_s)

    def finished(self) -> Look | None:
        """Return the look that was under way once it is done, else None."""
        if self._pending is None or not self._pending.done():
            return None
        pending, self._pending = self._pending, None
        return pending.result()

    def wait(self, time_limit_s: float) -> Look | None:
        """Wait for the look under way, at most so many seconds."""
        if self._pending is None:
            return None
        try:
            self._pending.exception(time_limit_s)
        except TimeoutError:
            return None
        return self.finished()

    def close(self) -> None:
        """Give up the look under way: its probes end by their own time limits."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _look(targets: tuple[Target, ...], time_limit_s: float) -> Look:
    taken = sample_all(
        [Subject(pid=target.pid, rank=target.rank, python=target.python) for target in targets],
        time_limit_s,
    )
    samples = tuple((target, sample) for target, (sample, _) in zip(targets, taken, strict=True))
    return Look(samples, tuple(gap for _, gaps in taken for gap in gaps))
