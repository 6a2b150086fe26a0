"""When a job is looked at, and when its steps are far below a rank's own pace; also over hours."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, SECOND, job, look, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.look.sample import Look, Target
from lightning_hangcheck.model.beat import Beat, Slowness, SlowRank, StepTimes
from lightning_hangcheck.model.case import Limits
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.watched_rank import WatchedRank
from lightning_hangcheck.watch.pace import GLANCES, LEARNT, WINDOW, Glances, JobPace
from lightning_hangcheck.watch.schedule import Schedule, figures_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = tuple[StepTimes, StepTimes]
    Kind = Callable[[random.Random, float], Iterator[Step]]


def looks_of_a_silence(
    schedule: Schedule,
    until_s: float,
    *,
    suspicious: bool,
    pause_s: float = 0.0,
    begins_s: float = 0.0,
    idle: bool = False,
) -> list[float]:
    """Times into a silence at which it is looked at, read four times a second; 0.1 s a look."""
    looks, now_s = [], 0.0
    while now_s <= until_s:
        now_ns = int((begins_s + now_s) * SECOND)
        if schedule.due(now_s, pause_s, now_s if idle else 0.0, now_ns):
            schedule.looked(now_ns, suspicious=suspicious, cost_s=0.1)
            looks.append(now_s)
        now_s += 0.25
    return looks


def test_looks_come_when_the_table_may_say_something_new_and_then_less_and_less() -> None:
    """At 3 and 5 s what nobody can end, and 10 s whatever it is; progress begins that anew."""
    schedule = Schedule(2.0)
    looks = looks_of_a_silence(schedule, 300.0, suspicious=False)
    assert looks[:6] == [2.0, 3.0, 4.0, 5.0, 7.5, 10.0]
    gaps = [later - earlier for earlier, later in pairwise(looks)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 30.0
    assert not schedule.due(0.1, 0.0, 0.0, 301 * SECOND)
    assert schedule.due(2.0, 0.0, 0.0, 303 * SECOND)


def test_a_silence_that_passes_a_figure_of_the_table_is_looked_at_at_once() -> None:
    schedule = Schedule(2.0)
    looks_of_a_silence(schedule, 29.0, suspicious=True)
    schedule.looked(29 * SECOND, suspicious=True)
    assert not schedule.due(29.5, 0.0, 0.0, int(29.5 * SECOND), passed=3)
    assert not schedule.due(29.75, 0.0, 0.0, int(29.75 * SECOND), passed=4), "not twice in 0.8 s"
    assert schedule.due(30.0, 0.0, 0.0, 30 * SECOND, passed=4)


def test_the_look_for_a_figure_begins_early_enough_to_be_judged_as_it_is_passed() -> None:
    """A rank is silent for 10 s: the look takes half a second, and a reading comes each quarter."""
    schedule, rank = Schedule(2.0, foreseen=(10.0,)), silent_rank()
    assert not schedule.due_for([rank], 2 * SECOND - 1)
    assert schedule.due_for([rank], 2 * SECOND)
    for begun_s in (2.0, 4.0, 6.0, 8.0):
        schedule.looked(int(begun_s * SECOND), suspicious=True, lasted_s=0.5)
    schedule.judged([rank], int(8.5 * SECOND))
    assert not schedule.due_for([rank], int(9.25 * SECOND))
    assert schedule.due_for([rank], int(9.5 * SECOND))
    schedule.looked(int(9.5 * SECOND), suspicious=True, lasted_s=0.5)
    assert not schedule.says_more([rank], 10 * SECOND - 1)
    assert schedule.says_more([rank], 10 * SECOND)
    schedule.judged([rank], 10 * SECOND)
    assert not schedule.says_more([rank], int(10.25 * SECOND))
    rank.read_state("T", int(0.5 * SECOND))
    assert schedule.says_more([rank], int(10.5 * SECOND)), "seen stopped after it fell silent"
    schedule.judged([rank], 9 * SECOND)
    assert not schedule.says_more([rank], 12 * SECOND), "an old look is not judged again"


def silent_rank() -> WatchedRank:
    """A rank that has told nothing since the clock began."""
    return WatchedRank(FoundRank(rank=0, pid=os.getpid(), started_ticks=1), 0)


def test_the_figures_are_those_of_the_table() -> None:
    foreseen, others = figures_of(Limits())
    assert set(foreseen) == {3.0, 5.0, 10.0}
    assert set(others) == {15.0, 30.0, 120.0, 300.0}


def test_what_only_time_makes_a_hang_is_looked_at_after_it() -> None:
    schedule, rank = Schedule(2.0, others=(30.0,)), silent_rank()
    for begun_s in (2, 12, 22, 28):
        schedule.looked(begun_s * SECOND, suspicious=True, lasted_s=0.5)
    assert not schedule.due_for([rank], int(29.75 * SECOND))
    assert schedule.due_for([rank], 30 * SECOND)
    assert not schedule.says_more([rank], 30 * SECOND)


def test_looks_at_an_alarm_that_stands_come_at_twice_the_time_up_to_a_minute() -> None:
    looks = looks_of_a_silence(Schedule(2.0), 300.0, suspicious=True)
    gaps = [later - earlier for earlier, later in pairwise(looks)]
    assert gaps == [1.0, 1.0, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_where_something_moves_while_an_alarm_stands_it_is_looked_at_often_again() -> None:
    schedule = Schedule(2.0)
    looks_of_a_silence(schedule, 150.0, suspicious=True)
    schedule.looked(160 * SECOND, suspicious=True, moved=True)
    assert not schedule.due(162.0, 0.0, 0.0, 162 * SECOND)
    assert schedule.due(162.5, 0.0, 0.0, int(162.5 * SECOND))


def test_a_pause_that_is_usual_here_is_no_surprise_up_to_8_s_or_where_all_are_idle() -> None:
    assert looks_of_a_silence(Schedule(2.0), 5.5, suspicious=True, pause_s=2.0) == []
    assert looks_of_a_silence(Schedule(2.0), 10.0, suspicious=True, pause_s=60.0)[0] == 8.0
    looks = looks_of_a_silence(Schedule(2.0), 5.0, suspicious=True, pause_s=60.0, idle=True)
    assert looks[:4] == [2.0, 3.0, 4.0, 5.0]


def test_ranks_that_often_pause_together_are_looked_at_for_1_percent_of_a_core() -> None:
    """Each step is 4 s without processor time: 600 s of them, with 0.1 s a look."""
    schedule = Schedule(2.0)
    looks = sum(
        len(
            looks_of_a_silence(
                schedule, 4.0, suspicious=False, pause_s=4.0, begins_s=4.25 * step, idle=True
            )
        )
        for step in range(140)
    )
    assert 6 <= looks <= 60


def test_a_busy_rank_that_turns_idle_is_looked_at_again_at_once() -> None:
    schedule = Schedule(2.0)
    looks = looks_of_a_silence(schedule, 100.0, suspicious=False)
    turned_idle_s = looks[-1] + 1.0
    now_s = turned_idle_s + 2.0
    assert schedule.due(now_s, 0.0, now_s - turned_idle_s, int(now_s * SECOND))


def test_a_rank_that_stands_still_after_it_moved_is_looked_at_again_soon() -> None:
    schedule = Schedule(2.0)
    looks_of_a_silence(schedule, 100.0, suspicious=False)
    schedule.looked(130 * SECOND, suspicious=False, stood_still=True)
    assert schedule.due(131.0, 0.0, 0.0, 131 * SECOND)


def test_looks_at_ranks_that_are_only_slow_cost_no_more_than_a_hundredth_of_a_core() -> None:
    schedule, spent_s = Schedule(2.0), 0.0
    for second in range(2, 3600):
        if schedule.due(float(second), 0.0, 0.0, second * SECOND):
            schedule.looked(second * SECOND, suspicious=False, cost_s=0.8)
            spent_s += 0.8
    assert spent_s <= 0.01 * 3600 + 9 * 0.8  # those that begin the silence come on top


def test_one_that_stands_still_now_and_then_is_not_looked_at_all_the_time() -> None:
    schedule, looks = Schedule(2.0), 0
    for second in range(2, 600):
        if schedule.due(float(second), 0.0, 0.0, second * SECOND):
            looks += 1
            schedule.looked(second * SECOND, suspicious=False, stood_still=looks % 2 == 0)
    assert looks <= 60  # a tenth of a core-second each: 1 %


# When steps are far below a rank's own pace, and when they have it again; also over hours.

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
