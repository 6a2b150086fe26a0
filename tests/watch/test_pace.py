"""When steps are far below a rank's own pace, and when they have it again; also over hours."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, SECOND, job, look, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.look.sample import Look, Target
from lightning_hangcheck.model.beat import Beat, Slowness, SlowRank, StepTimes
from lightning_hangcheck.watch.pace import GLANCES, LEARNT, WINDOW, Glances, JobPace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = tuple[StepTimes, StepTimes]
    Kind = Callable[[random.Random, float], Iterator[Step]]

LIMIT_S = 80.0
USUAL = StepTimes(1, 0.2, 0.3, 0.5)
SLOW_STEP = StepTimes(1, 9.2, 0.3, 0.5)
LEARNING = 10 * (LEARNT + 3 * WINDOW)
"""Steps of a second after which a pace is learnt."""


class Training:
    """Ranks whose steps are told to a watch of their pace, one after the other."""

    def __init__(self, *ranks: int, slow_after_s: float | None = LIMIT_S) -> None:
        self.pace = JobPace(slow_after_s)
        self._sums = {rank: StepTimes() for rank in ranks}
        self.now_s = 1000.0
        self.in_parts = True
        self.told: list[Slowness] = []

    def step(self, made: dict[int, StepTimes]) -> None:
        """Make one step of each rank, and have the pages read."""
        self.now_s += max(step.seconds for step in made.values())
        for number, step in made.items():
            sums = self._sums[number]
            parts = (one + other for one, other in zip(sums.parts, step.parts, strict=True))
            self._sums[number] = StepTimes(sums.steps + 1, *parts)
        self.read()

    def steps(self, count: int, **each: StepTimes) -> Training:
        """Make so many steps; ``r1`` of rank 1, the usual one of all others."""
        for _ in range(count):
            self.step({rank: each.get(f"r{rank}", USUAL) for rank in self._sums})
        return self

    def until_told(self, **each: StepTimes) -> Slowness:
        """Make steps until somebody is slow, and take it as told."""
        while not self.told:
            self.steps(1, **each)
        self.pace.tell()
        return self.told.pop()

    def read(self, phase: str = "training_step") -> None:
        """Have the pages read, with the parts of each step or with its number alone."""
        now_ns = int(self.now_s * SECOND)
        at = {"pid": 1, "phase": phase, "last_beat_ns": now_ns}
        beats = {
            rank: Beat(**at, **({"step_times": sums} if self.in_parts else {"step": sums.steps}))
            for rank, sums in self._sums.items()
        }
        self.pace.read(beats, now_ns)
        slowness = self.pace.slowness(now_ns)
        self.told += [slowness] if slowness is not None else []

    def recovered_s(self) -> float | None:
        return self.pace.recovered_s(int(self.now_s * SECOND))


def test_a_rank_that_waits_long_for_its_batches_is_named_after_the_limit() -> None:
    training = Training(0, 1).steps(LEARNING)
    before_s = training.now_s
    waiting = StepTimes(1, 0.2, 0.3, 9.5)
    slowness = training.until_told(r0=waiting, r1=SLOW_STEP)
    assert LIMIT_S <= training.now_s - before_s < 4 * LIMIT_S
    assert [one.rank for one in slowness.ranks] == [0, 1]
    assert slowness.for_s >= LIMIT_S
    _, slow = slowness.ranks
    assert (slow.before.loader_s, slow.now.loader_s) == (0.2, 9.2)
    assert slow.ratio == 10.0


def test_what_is_no_lost_pace() -> None:
    assert Training(0).steps(LEARNING // 3).steps(100, r0=SLOW_STEP).told == [], "none is learnt"
    training = Training(0).steps(LEARNING)
    training.steps(1, r0=StepTimes(1, 900.0, 0.3, 0.5)).steps(60)
    for _ in range(20):
        training.steps(1, r0=StepTimes(1, 300.0, 0.3, 0.5)).steps(40)
    assert training.told == [], "long steps now and then"
    for _ in range(1000):
        training.now_s += 1.0
        training.read()
    assert training.told == [], "nothing advances"
    for _ in range(50):
        training.steps(WINDOW, r0=SLOW_STEP)
        training.pace.interrupt()
    assert training.told == [], "nobody watched"
    training.read(phase="trainer_init")
    assert training.steps(200, r0=SLOW_STEP).told == [], "another training loop"
    unwanted = Training(0, slow_after_s=None)
    assert unwanted.steps(LEARNING).steps(100, r0=SLOW_STEP).told == []


def test_it_is_told_once_and_once_that_the_pace_is_back() -> None:
    training = Training(0).steps(LEARNING)
    training.until_told(r0=SLOW_STEP)
    assert training.recovered_s() is None
    training.steps(200, r0=SLOW_STEP)
    assert training.recovered_s() is None
    assert training.told == []
    training.steps(100)
    slow_s = training.recovered_s()
    assert slow_s is not None
    assert slow_s > 200 * SLOW_STEP.seconds
    assert training.recovered_s() is None
    assert training.steps(200).told == []
    training.until_told(r0=SLOW_STEP)
    assert training.steps(200).recovered_s() is not None
    assert training.steps(60, r0=SLOW_STEP).told == [], "what came twice is its own pace"


def usual(rng: random.Random, scale_s: float, grown: float = 1.0, *late_s: float) -> Step:
    """A step of two ranks that wait for each other, the batch of each so much later."""
    late = late_s or (0.0, 0.0)
    loader = [scale_s * 0.3 * rng.lognormvariate(0, 0.5) + one for one in late]
    forward = [scale_s * 0.7 * grown * rng.lognormvariate(0, 0.1) for _ in late]
    own = [one + other for one, other in zip(loader, forward, strict=True)]
    whole_s = max(own) + scale_s * grown * rng.lognormvariate(0, 0.2)
    first, second = (StepTimes(1, loader[n], forward[n], whole_s - own[n]) for n in (0, 1))
    return first, second


def heavy_tailed(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """One batch in 200 takes up to 100 times as long (Pareto)."""
    while True:
        late = [scale_s * (rng.paretovariate(1.1) if rng.random() < 0.005 else 0) for _ in (0, 1)]
        yield usual(rng, scale_s, 1.0, *late)


def bursts(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """Storage that others use: five to thirty times as slow, for less than the limit."""
    calm_s = rng.uniform(30, 1800)
    while True:
        for _ in range(int((SLOW_AFTER_S + rng.expovariate(1 / calm_s)) / scale_s)):
            yield usual(rng, scale_s)
        left_s, factor, who = rng.uniform(1, SLOW_AFTER_S / 1.5), rng.uniform(5, 30), rng.random()
        while left_s > 0:
            late = [0.0, 0.0]
            late[who < 0.5] = min(scale_s * factor, left_s)
            left_s -= max(late) + 1.3 * scale_s
            yield usual(rng, scale_s, 1.0, *late)


def bimodal(rng: random.Random, scale_s: float) -> Iterator[Step]:
    """Short and long batches, drawn by chance or in blocks of the same length."""
    share, factor, block = rng.uniform(0.02, 0.5), rng.uniform(3, 20), rng.choice((1, 1, 10, 50))
    while True:
        grown = factor if rng.random() < share else 1.0
        for _ in range(block):
            yield usual(rng, scale_s, grown)


SLOW_AFTER_S, HOURS, HOUR_S = 180.0, 3.0, 3600.0
RUNNING = job(rank(0, silent=0.1), rank(1, silent=0.1))


@pytest.mark.parametrize("in_parts", [True, False], ids=["parts", "whole"])
@pytest.mark.parametrize("kind", [heavy_tailed, bursts, bimodal])
def test_no_usual_loop_is_called_slow(kind: Kind, *, in_parts: bool) -> None:
    """Nothing in them is slow for as long as the limit."""
    for seed in range(2):
        rng = random.Random(seed)
        steps = kind(rng, 10 ** rng.uniform(0, 0.7))
        training = Training(0, 1, slow_after_s=SLOW_AFTER_S)
        training.in_parts = in_parts
        while training.now_s < HOURS * HOUR_S:
            training.step(dict(enumerate(next(steps))))
        judged = [judge(replace(RUNNING, slowness=one)).verdict for one in training.told]
        assert "slow" not in judged


SLOW = Slowness(
    for_s=200.0,
    ranks=tuple(
        SlowRank(rank=number, before=StepTimes(), now=StepTimes(), known_s=1.0, level_s=9.0)
        for number in (0, 1)
    ),
)


def seen(*stacks: tuple, state: str = "S") -> Look:
    """One look at rank 0, rank 1, and so on."""
    samples = [look(frames, state=state).samples[-1] for frames in stacks]
    return Look(
        samples=tuple(
            (Target(rank=number, pid=100 + number, role="rank"), sample)
            for number, sample in enumerate(samples)
        ),
        gaps=(),
    )


def test_ranks_in_a_collective_wait_and_others_work_at_a_line() -> None:
    glances = Glances()
    for _ in range(GLANCES - 1):
        glances.take(seen(IN_ALL_REDUCE, IN_LOAD))
    assert not glances.enough
    glances.take(seen(IN_LOAD, IN_ALL_REDUCE))
    assert glances.enough
    waits, works = glances.added_to(SLOW).ranks
    assert (waits.looks, waits.waited) == (GLANCES, GLANCES - 1)
    assert (works.looks, works.waited, works.place) == (GLANCES, 1, IN_LOAD[-1])
