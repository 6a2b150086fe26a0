"""What ranks use and how fast they go, measured between two readings of the same run."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.live_view.rank_now import RankUse
from lightning_hangcheck.model.step_times import StepTimes
from lightning_hangcheck.report.stragglers import LEAST_STEPS
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.attach.running_job import RunningJob
    from lightning_hangcheck.model.evidence import GpuState
    from lightning_hangcheck.report.running_ranks import RunningRank

LEAST_S = 0.4
"""The kernel counts processor time in ticks of 10 ms: over less a percentage would jump."""


class _Reading(NamedTuple):
    """What is compared with the next one; moments are monotonic nanoseconds.

    Attributes:
        made: Steps so far; beats, where it shows no steps.
    """

    pid: int
    cpu_s: float | None
    cpu_ns: int
    cpu_percent: float | None
    made: int
    beat_ns: int
    step_s: float | None


class RecentSteps:
    """The newest timed steps of one process, at least ten of them."""

    def __init__(self) -> None:
        self._sums: deque[StepTimes] = deque()

    def read(self, sums: StepTimes | None) -> StepTimes | None:
        """Take a reading of its page.

        Returns:
            The mean of one of them; None before there are ten.
        """
        if sums is None:
            return None
        if self._sums and sums.steps < self._sums[-1].steps:
            self._sums.clear()
        if not self._sums:
            self._sums.append(StepTimes())  # what was timed before anybody looked counts as recent
        if sums.steps > self._sums[-1].steps:
            self._sums.append(sums)
        while len(self._sums) > 1 and sums.steps - self._sums[1].steps >= LEAST_STEPS:
            self._sums.popleft()
        recent = sums.since(self._sums[0])
        return recent.a_step() if recent.steps >= LEAST_STEPS else None


class UseMeter:
    """Compares each reading of a rank with the one before; a rank that came new has none."""

    def __init__(self) -> None:
        self._before: dict[int, _Reading] = {}
        self._steps: dict[int, RecentSteps] = {}

    def measure(
        self, job: RunningJob, gpus: Mapping[int, Sequence[GpuState]]
    ) -> dict[int, RankUse]:
        """Take a reading.

        Args:
            job: As it is now.
            gpus: By process id, those that it uses, as they were told last.

        Returns:
            By rank.
        """
        readings = {one.rank: self._reading(one, job.read_ns) for one in job.ranks}
        self._before = readings
        pids = [one.beat.pid for one in job.ranks]
        self._steps = {pid: self._steps.get(pid) or RecentSteps() for pid in pids}
        return {
            one.rank: replace(
                _use(one, readings[one.rank], gpus.get(one.beat.pid, ())),
                a_step=self._steps[one.beat.pid].read(one.beat.step_times),
            )
            for one in job.ranks
        }

    def _reading(self, one: RunningRank, now_ns: int) -> _Reading:
        beat = one.beat
        count = beat.beats if beat.step is None else beat.step
        new = _Reading(beat.pid, one.cpu_s, now_ns, None, count, beat.last_beat_ns, None)
        old = self._before.get(one.rank)
        if old is None or old.pid != beat.pid or count < old.made:
            return new
        made = count - old.made
        passed_s = (beat.last_beat_ns - old.beat_ns) / NANOSECONDS
        paced = (
            new._replace(step_s=passed_s / made)
            if made
            else new._replace(step_s=old.step_s, beat_ns=old.beat_ns)
        )
        elapsed_s = (now_ns - old.cpu_ns) / NANOSECONDS
        if one.cpu_s is None or old.cpu_s is None or elapsed_s < LEAST_S:
            return paced._replace(cpu_s=old.cpu_s, cpu_ns=old.cpu_ns, cpu_percent=old.cpu_percent)
        percent = 100 * max(0.0, one.cpu_s - old.cpu_s) / elapsed_s
        return paced._replace(cpu_percent=percent)


def _use(one: RunningRank, reading: _Reading, gpus: Sequence[GpuState]) -> RankUse:
    step_s = reading.step_s
    if one.step_s is not None:
        step_s = max(step_s or 0.0, one.silent_s) if one.silent_s > one.step_s else step_s
    busy = [gpu.busy_percent for gpu in gpus if gpu.busy_percent is not None]
    memory = [gpu.own_memory_bytes for gpu in gpus if gpu.own_memory_bytes is not None]
    return RankUse(
        cpu_percent=reading.cpu_percent,
        step_now_s=step_s,
        gpu_percent=max(busy, default=None),
        gpu_bytes=sum(memory) if memory else None,
    )
