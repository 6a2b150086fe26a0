"""Hours of training steps as ranks would time them, given to the product's own watch of the pace.

Each kind is a loop of two ranks that wait for each other in every step. Nothing in them is slow
for as long as the limit, so whatever is told of them is told wrongly; `told_of_slow_rank` has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat, StepTimes
from lightning_hangcheck.model.case import Case, RankView, RunFacts
from lightning_hangcheck.watch.pace import JobPace

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from lightning_hangcheck.model.verdict import Verdict

    Kind = Callable[[random.Random, float], Iterator["Step"]]

SLOW_AFTER_S = 180.0
HOUR_S = 3600.0
POLL_S = 0.25
RANKS = (0, 1)
SECOND = 1_000_000_000


class Step(NamedTuple):
    """One step of both ranks: seconds of own work of each, then together, then of a pause."""

    loader_s: tuple[float, float]
    forward_s: tuple[float, float]
    together_s: float
    pause_s: float = 0.0
    lapse: bool = False


def heavy_tailed(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """Log-normal loaders with a Pareto tail: one batch in 200 takes up to 100 times as long."""
    while True:
        tail = [scale_s * (rng.paretovariate(1.1) if rng.random() < 0.005 else 0) for _ in RANKS]
        loader = [scale_s * 0.3 * rng.lognormvariate(0, 1) + one for one in tail]
        yield Step((loader[0], loader[1]), (scale_s, scale_s), scale_s * rng.lognormvariate(0, 0.3))


def pauses(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """Every few hundred steps an evaluation or a save that the loop does not tell apart."""
    every = rng.randint(5, 500)
    pause_s = rng.uniform(5, 1200)
    number = 0
    while True:
        number += 1
        pause = pause_s * rng.lognormvariate(0, 0.3) if number % every == 0 else 0.0
        yield _usual(rng, scale_s, pause_s=pause)


def growing(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """Longer and longer sequences: eight times the work after some hours."""
    hours = rng.uniform(1, 12)
    elapsed_s = 0.0
    while True:
        grown = 8 ** min(1.0, elapsed_s / (hours * HOUR_S))
        step = _usual(rng, scale_s, grown)
        elapsed_s += sum(step.loader_s) / 2 + step.forward_s[0] + step.together_s
        yield step


def bursts(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """Storage that others use: five to thirty times as slow, for less than the limit."""
    calm_s = rng.uniform(30, 1800)
    while True:
        for _ in range(int((SLOW_AFTER_S + rng.expovariate(1 / calm_s)) / scale_s)):
            yield _usual(rng, scale_s)
        left_s, factor = rng.uniform(1, SLOW_AFTER_S / 1.5), rng.uniform(5, 30)
        who = rng.choice(RANKS)
        while left_s > 0:
            step = _usual(rng, scale_s)
            loader = list(step.loader_s)
            loader[who] += min(scale_s * factor, left_s)
            left_s -= loader[who] + scale_s
            yield _with_loader(step, loader)


def bimodal(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """Short and long batches, drawn by chance or in blocks of the same length."""
    share, factor = rng.uniform(0.02, 0.5), rng.uniform(3, 20)
    block = rng.choice((1, 1, 10, 50))
    while True:
        grown = factor if rng.random() < share else 1.0
        for _ in range(block):
            yield _usual(rng, scale_s, grown)


def sorted_by_length(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """Each epoch begins with its longest batches and ends with its shortest."""
    steps, factor = int(rng.uniform(600, 7200) / scale_s / 3), rng.uniform(3, 12)
    while True:
        for number in range(steps):
            yield _usual(rng, scale_s, factor ** (1 - number / steps))


def regimes(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """A machine shared with others: hours at half of the pace, and back."""
    while True:
        grown = rng.uniform(1, 2.2)
        for _ in range(int(rng.uniform(600, 7200) / scale_s / 2)):
            yield _usual(rng, scale_s, grown)


def lapses(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """A machine so overloaded that nobody watches for seconds, while steps take twenty times."""
    while True:
        for _ in range(int(rng.uniform(300, 3600) / scale_s / 2)):
            yield _usual(rng, scale_s)
        left_s = rng.uniform(60, 1800)
        while left_s > 0:
            step = _usual(rng, scale_s, 20.0, lapse=rng.random() < min(1.0, 2 * scale_s))
            left_s -= 40 * scale_s
            yield step


KINDS = (heavy_tailed, pauses, growing, bursts, bimodal, sorted_by_length, regimes, lapses)


def _usual(
    rng: random.Random,
    scale_s: float,
    grown: float = 1.0,
    *,
    pause_s: float = 0.0,
    lapse: bool = False,
) -> Step:
    loader = [scale_s * 0.3 * rng.lognormvariate(0, 0.5) for _ in RANKS]
    forward = [scale_s * 0.7 * grown * rng.lognormvariate(0, 0.1) for _ in RANKS]
    together = scale_s * grown * rng.lognormvariate(0, 0.2)
    return Step((loader[0], loader[1]), (forward[0], forward[1]), together, pause_s, lapse)


def _with_loader(step: Step, loader: list[float]) -> Step:
    """The same step with other batches."""
    return Step((loader[0], loader[1]), *step[1:])


def told(
    steps: Iterator[Step], hours: float, *, in_parts: bool, slow_after_s: float = SLOW_AFTER_S
) -> list[Verdict]:
    """What the watch tells of these steps: each verdict, without its end."""
    pace = JobPace(slow_after_s)
    sums = [StepTimes(), StepTimes()]
    beat = Beat(pid=1, phase="training_step", beats=1)
    now_s, read_s, number = 0.0, 0.0, 0
    verdicts = []
    while now_s < hours * HOUR_S:
        step = next(steps)
        number += 1
        own = [step.loader_s[rank] + step.forward_s[rank] for rank in RANKS]
        whole_s = max(own) + step.together_s
        now_s += whole_s + step.pause_s
        sums = [
            StepTimes(
                number,
                sums[rank].loader_s + step.loader_s[rank],
                sums[rank].forward_s + step.forward_s[rank],
                sums[rank].rest_s + whole_s - own[rank],
            )
            for rank in RANKS
        ]
        if now_s - read_s < POLL_S:
            continue
        read_s, now_ns = now_s, int(now_s * SECOND)
        if step.lapse:
            pace.interrupt()
        at = replace(beat, step=number, last_beat_ns=now_ns)
        pace.read(
            {rank: replace(at, step_times=sums[rank]) if in_parts else at for rank in RANKS}, now_ns
        )
        pace.recovered_s(now_ns)
        slowness = pace.slowness(now_ns)
        if slowness is None:
            continue
        verdict = judge(replace(_case(now_ns, at), slowness=slowness))
        if verdict.verdict == "slow":
            pace.tell()
            verdicts.append(verdict)
    return verdicts


def told_of_slow_rank(
    rng: random.Random, factor: float, *, in_parts: bool
) -> tuple[int, list[Verdict]]:
    """An hour of usual steps, then half an hour in which one rank's batches take so many times."""
    scale_s, who = 10 ** rng.uniform(-2, 0.5), rng.choice(RANKS)

    def steps() -> Iterator[Step]:
        elapsed_s = 0.0
        while True:
            step = _usual(rng, scale_s)
            loader = list(step.loader_s)
            if elapsed_s > HOUR_S:
                loader[who] += scale_s * 2 * factor
            elapsed_s += max(loader) + scale_s * 1.7
            yield _with_loader(step, loader)

    return who, told(steps(), 1.5, in_parts=in_parts)


def _case(now_ns: int, beat: Beat) -> Case:
    return Case(
        run=RunFacts(run_id="r", command="c", started_at="2026-01-01T00:00:00Z", world_size=2),
        taken_at="2026-01-01T01:00:00Z",
        taken_ns=now_ns,
        ranks=tuple(RankView(rank=rank, pid=10 + rank, beat=beat) for rank in RANKS),
    )
