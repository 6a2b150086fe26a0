"""One fact a rank, of all that is known of it at one moment, and what it uses meanwhile.

Use and pace are measured between two readings of the same run (`UseMeter`); GPUs are asked in
a thread of their own, as a driver may take its time (`GpuReader`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.look.gpu import Gpus, gpus_of
from lightning_hangcheck.model.beat import StepTimes
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.report.page.page_facts import EqualRanks, equal_ranks
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.running_ranks import RunningRank, last_checkpoint
from lightning_hangcheck.report.saved_run import JournalEnd
from lightning_hangcheck.report.stragglers import LEAST_STEPS, compared, slower_part
from lightning_hangcheck.report.verdict_text import awaited
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lightning_hangcheck.attach.recorded_session import RunningJob
    from lightning_hangcheck.model.evidence import GpuState
    from lightning_hangcheck.model.verdict import State

Standing = Literal[
    "gone", "stuck", "stopped", "missing", "waits", "silent", "runs", "not here", "unseen", "ended"
]
"""In the order of the table, below the culprits."""
ORDER: tuple[Standing, ...] = get_args(Standing)
PROBLEMS: tuple[Standing, ...] = ("gone", "stuck", "stopped", "missing", "waits", "silent")
STANDINGS: dict[State, Standing] = {
    "running": "runs",
    "waiting": "waits",
    "stalled": "stuck",
    "stopped": "stopped",
    "gone": "gone",
    "missing": "missing",
    "unseen": "unseen",
}
IN_FORCE = ("suspect", "hang", "dead", "crashed")
"""Verdicts whose table of ranks tells the present until the next one comes."""
QUIET_S, QUIET_STEPS = 2.0, 3.0
"""Silence from which a rank of known pace is shown as silent: when its sidecar, too, looks."""
QUIET_WITHOUT_PACE_S = 10.0
"""Where no pace is known yet: loading a model takes its time."""


class RankUse(Struct, frozen=True, kw_only=True):
    """What a rank uses and how fast it goes, measured between two readings.

    Attributes:
        cpu_percent: Of one core.
        step_now_s: Seconds of its newest step; of what passed since, where that is more.
        gpu_percent: Share of the time in which its GPUs worked.
        gpu_bytes: Its own memory on them.
        a_step: The mean of its newest timed steps, at least ten.
    """

    cpu_percent: float | None = None
    step_now_s: float | None = None
    gpu_percent: int | None = None
    gpu_bytes: int | None = None
    a_step: StepTimes | None = None


class Slowest(NamedTuple):
    """Why a rank is the slowest of those that run.

    Attributes:
        ratio: Its own work in a step against that of the median rank.
        part: In which part of the step most of the difference lies.
    """

    ratio: float
    part: str


class RankNow(Struct, frozen=True, kw_only=True):
    """One rank at one moment; None and empty for what nobody tells.

    Attributes:
        culprit: The verdict in force names it.
        waits_for: Whom or what, and in what; of a rank that waits for no one, where it stands.
        step_s: Its own median.
        slowest: It has more work of its own in a step than all others; None for all other ranks.
        kept: The last checkpoint, in words, and ``kept_at`` when.
    """

    rank: int
    standing: Standing
    culprit: bool = False
    silent_s: float | None = None
    phase: str = ""
    waits_for: str = ""
    step: int | None = None
    step_s: float | None = None
    slowest: Slowest | None = None
    kept: str = ""
    kept_at: str = ""
    memory_bytes: int | None = None
    use: RankUse = RankUse()

    @property
    def has_problem(self) -> bool:
        """Whether it belongs to the top of the table."""
        return self.culprit or self.standing in PROBLEMS


class RunSources(Struct, frozen=True, kw_only=True):
    """All that was read of a run.

    Attributes:
        over: It has ended, or nothing of it is left here.
        here: Its session is on this machine, so a rank without a page has ended.
        used: By rank.
    """

    running: tuple[RunningRank, ...] = ()
    verdict: Verdict | None = None
    record: RunRecord | None = None
    journals: tuple[JournalEnd, ...] = ()
    over: bool = False
    here: bool = False
    used: Mapping[int, RankUse] = {}


def ranks_now(sources: RunSources) -> tuple[RankNow, ...]:
    """Join what is known; where several tell, a page tells the place, a verdict the standing.

    Args:
        sources: Of one moment.

    Returns:
        Every rank that is known to be part of the job, problems first, then by rank.
    """
    found = {one.rank: one for one in _announced(sources)}
    found |= {one.rank: one for one in _from_journals(sources)}
    found |= {one.rank: one for one in _judged(sources)}
    saved = any(one.beat.save is not None for one in sources.running)
    for one in sources.running:
        found[one.rank] = _running(one, found.get(one.rank), sources, saved=saved)
    return tuple(sorted(_with_slowest(found.values()), key=_place))


def _place(one: RankNow) -> tuple[bool, int, bool, int]:
    return not one.culprit, ORDER.index(one.standing), one.slowest is None, one.rank


def _with_slowest(ranks: Collection[RankNow]) -> list[RankNow]:
    """Name the slowest rank of those that run, as the end of a run would."""
    timed = {one.rank: one.use.a_step for one in ranks if one.standing == "runs"}
    found = compared({rank: a_step for rank, a_step in timed.items() if a_step is not None})
    if found is None or not found.stands_out:
        return list(ranks)
    first = found.ranks[0]
    why = Slowest(first.ratio, slower_part(first.mean, found.typical))
    return [replace(one, slowest=why) if one.rank == first.rank else one for one in ranks]


def _announced(sources: RunSources) -> Iterator[RankNow]:
    """Ranks of which only run.json tells."""
    if sources.record is None:
        return
    seen = _seen_here(sources)
    for rank in sorted(seen.union(range(sources.record.world_size))):
        ended = sources.over or rank in seen
        yield RankNow(rank=rank, standing="ended" if ended else "not here")


def _seen_here(sources: RunSources) -> frozenset[int]:
    """Ranks that this machine's sidecar saw: one of them without a page has ended."""
    known = sources.record.ranks if sources.here and sources.record is not None else ()
    return frozenset(one.rank for one in known)


def _from_journals(sources: RunSources) -> Iterator[RankNow]:
    seen = _seen_here(sources)
    for journal in sources.journals:
        number = journal.name.removeprefix("rank-")
        if not number.isdecimal():
            continue
        mark, step = journal.checkpoint, journal.kept_step
        words = f"{mark.number}: {plain(mark.name)}" if mark else ""
        yield RankNow(
            rank=int(number),
            standing="ended" if sources.over or int(number) in seen else "unseen",
            kept=words if step is None else f"saved at step {step}",
            kept_at=mark.at if mark and step is None else "",
        )


def _judged(sources: RunSources) -> Iterator[RankNow]:
    """Ranks as the newest verdict has them; one that is not in force tells only where they were."""
    verdict = sources.verdict
    if verdict is None:
        return
    in_force = verdict.verdict in IN_FORCE
    seen = _seen_here(sources)
    states = {state.rank: state for state in verdict.ranks}
    targets: dict[str, list[str]] = {}
    for edge in verdict.wait_for:
        targets.setdefault(edge.source, []).append(edge.target)
    for group in equal_ranks(verdict):
        for rank in group.ranks:
            state = states.get(rank, group.example)
            source = f"rank:{state.rank}"
            ended = sources.over or rank in seen
            yield RankNow(
                rank=rank,
                standing=_standing(STANDINGS[state.state] if in_force else "unseen", ended=ended),
                culprit=in_force and group.situation.is_culprit,
                phase=state.phase or "",
                waits_for=_waits(group, targets.get(source, ())) if in_force else "",
                step=state.step,
            )


def _standing(told: Standing, *, ended: bool) -> Standing:
    """What a verdict in force says of a rank that is stuck or waits outlives its process."""
    return "ended" if ended and told in ("runs", "unseen") else told


def _waits(group: EqualRanks, targets: Sequence[str]) -> str:
    """Whom first: a narrow column cuts the end."""
    whom = awaited(targets).removeprefix("for ")
    if whom:
        return " ".join(filter(None, (whom, group.situation.doing)))
    stands = group.example.state in ("waiting", "stalled", "stopped")
    return plain(group.standing) if stands else ""


def _running(
    one: RunningRank, judged: RankNow | None, sources: RunSources, *, saved: bool
) -> RankNow:
    """A rank that runs: a verdict in force says how it stands, its page all else."""
    beat = one.beat
    kept = last_checkpoint(beat, saved=saved)
    known = judged or RankNow(rank=one.rank, standing="runs")
    doubted = known.standing not in ("gone", "stuck", "stopped", "waits")
    inside = plain(str(beat.main_sections[-1])) if beat.main_sections else ""
    return replace(
        known,
        standing=_by_silence(one) if doubted else known.standing,
        silent_s=one.silent_s,
        phase=beat.phase or known.phase,
        waits_for=known.waits_for or (f"in {inside}" if inside else ""),
        step=beat.step,
        step_s=one.step_s,
        kept=kept.words.removeprefix("CHECKPOINT "),
        kept_at=kept.at,
        memory_bytes=one.memory_bytes,
        use=sources.used.get(one.rank, RankUse()),
    )


def _by_silence(one: RunningRank) -> Standing:
    usual = QUIET_WITHOUT_PACE_S if one.step_s is None else one.step_s * QUIET_STEPS
    return "silent" if one.silent_s >= max(QUIET_S, usual) else "runs"


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


EVERY_S = 10.0
"""Asking takes a process of its own and a tenth of a second: 1 % of a core."""
ANSWER_LIMIT_S = 5.0


class GpusNow(NamedTuple):
    """As told last: GPUs by process id, and why some are not told."""

    by_pid: Gpus
    gaps: tuple[str, ...]


class GpuReader:
    """Asks for GPUs now and then, in a thread; where there is no driver it does nothing."""

    def __init__(self) -> None:
        self._newest = GpusNow({}, ())
        self._asking: threading.Thread | None = None
        self._ask_again_at = 0.0

    def read(self, pids: Sequence[int]) -> GpusNow:
        """Return what was told last, at once.

        Args:
            pids: Of the ranks, for the next answer.
        """
        free = self._asking is None or not self._asking.is_alive()
        if pids and free and time.monotonic() >= self._ask_again_at:
            self._ask_again_at = time.monotonic() + EVERY_S
            self._asking = threading.Thread(
                target=self._ask, args=(tuple(pids),), name="hangcheck-gpus", daemon=True
            )
            self._asking.start()
        return self._newest

    def _ask(self, pids: tuple[int, ...]) -> None:
        found, gaps = gpus_of(pids, ANSWER_LIMIT_S)
        self._newest = GpusNow(found or {}, tuple(f"{gap.what}: {gap.reason}" for gap in gaps))
