"""When steps are far below a rank's own pace, and when they have it again; also over hours."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from watch.pace.simulated_hours import KINDS, told, told_of_slow_rank

from lightning_hangcheck.model.beat import Beat, Slowness, StepTimes
from lightning_hangcheck.watch.pace import LEARNT, WINDOW, JobPace

if TYPE_CHECKING:
    from watch.pace.simulated_hours import Kind

SLOW_AFTER_S = 80.0

SECOND = 1_000_000_000

USUAL = StepTimes(1, 0.2, 0.3, 0.5)

SLOW = StepTimes(1, 9.2, 0.3, 0.5)

LEARNING = 10 * (LEARNT + 3 * WINDOW)

"""Steps of a second after which a pace is learnt."""


class Training:
    """Ranks whose steps are told to a watch of their pace, one after the other."""

    def __init__(self, *ranks: int) -> None:
        self.pace = JobPace(SLOW_AFTER_S)
        self._sums = {rank: StepTimes() for rank in ranks}
        self.now_s = 1000.0
        self.told: list[Slowness] = []

    def steps(self, count: int, **each: StepTimes) -> Training:
        """Make so many steps; ``r1`` of rank 1, the usual one of all others."""
        for _ in range(count):
            made = {rank: each.get(f"r{rank}", USUAL) for rank in self._sums}
            self.now_s += max(step.seconds for step in made.values())
            self._sums = {rank: _sum(self._sums[rank], step) for rank, step in made.items()}
            self.read()
        return self

    def until_told(self, **each: StepTimes) -> Slowness:
        """Make steps until somebody is slow, and take it as told."""
        while not self.told:
            self.steps(1, **each)
        self.pace.tell()
        (slowness,) = self.told
        self.told.clear()
        return slowness

    def read(self, **fields: object) -> None:
        """Have the pages read."""
        now_ns = int(self.now_s * SECOND)
        at = {"pid": 1, "phase": "training_step", "last_beat_ns": now_ns, **fields}
        self.pace.read({r: Beat(**{"step_times": s, **at}) for r, s in self._sums.items()}, now_ns)
        slowness = self.pace.slowness(now_ns)
        if slowness is not None:
            self.told.append(slowness)


def _sum(sums: StepTimes, step: StepTimes) -> StepTimes:
    parts = (one + other for one, other in zip(sums.parts, step.parts, strict=True))
    return StepTimes(sums.steps + 1, *parts)


def test_a_rank_that_waits_long_for_its_batches_is_named_after_the_limit() -> None:
    training = Training(0, 1).steps(LEARNING)
    before_s = training.now_s
    waiting = StepTimes(1, 0.2, 0.3, 9.5)
    slowness = training.until_told(r0=waiting, r1=SLOW)
    assert SLOW_AFTER_S <= training.now_s - before_s < 4 * SLOW_AFTER_S
    assert [one.rank for one in slowness.ranks] == [0, 1]
    assert slowness.for_s >= SLOW_AFTER_S
    _, slow = slowness.ranks
    assert (slow.before.loader_s, slow.now.loader_s) == (0.2, 9.2)
    assert slow.ratio == 10.0


def test_before_a_pace_is_learnt_none_is_lost() -> None:
    training = Training(0).steps(LEARNING // 3).steps(100, r0=SLOW)
    assert training.told == []


def test_a_single_long_step_is_none_and_neither_are_some_now_and_then() -> None:
    training = Training(0).steps(LEARNING)
    training.steps(1, r0=StepTimes(1, 900.0, 0.3, 0.5)).steps(60)
    for _ in range(20):
        training.steps(1, r0=StepTimes(1, 300.0, 0.3, 0.5)).steps(40)
    assert training.told == []


def test_where_nothing_advances_nothing_is_slow() -> None:
    training = Training(0).steps(LEARNING)
    for _ in range(1000):
        training.now_s += 1.0
        training.read()
    assert training.told == []


def test_what_nobody_watched_does_not_count() -> None:
    training = Training(0).steps(LEARNING)
    for _ in range(50):
        training.steps(WINDOW, r0=SLOW)
        training.pace.interrupt()
    assert training.told == []


def test_another_training_loop_has_another_pace() -> None:
    training = Training(0).steps(LEARNING)
    training.read(phase="trainer_init")
    assert training.steps(200, r0=SLOW).told == []


def test_it_is_told_once_and_once_that_the_pace_is_back() -> None:
    training = Training(0).steps(LEARNING)
    training.until_told(r0=SLOW)
    assert training.pace.recovered_s(int(training.now_s * SECOND)) is None
    training.steps(200, r0=SLOW)
    assert training.pace.recovered_s(int(training.now_s * SECOND)) is None
    assert training.told == []
    training.steps(100)
    slow_s = training.pace.recovered_s(int(training.now_s * SECOND))
    assert slow_s is not None
    assert slow_s > 200 * SLOW.seconds
    assert training.pace.recovered_s(int(training.now_s * SECOND)) is None
    training.steps(200)
    assert training.told == []


def test_what_came_and_went_twice_is_the_ranks_own_pace() -> None:
    training = Training(0).steps(LEARNING)
    for _ in range(2):
        training.until_told(r0=SLOW)
        training.steps(200)
        assert training.pace.recovered_s(int(training.now_s * SECOND)) is not None
    assert training.steps(60, r0=SLOW).told == []


def test_loops_without_parts_are_watched_by_their_steps() -> None:
    pace = JobPace(SLOW_AFTER_S)
    now_ns, told = SECOND, []
    for step in range(LEARNING + 60):
        now_ns += (1 if step < LEARNING else 9) * SECOND
        pace.read({0: Beat(pid=1, phase="training_step", step=step, last_beat_ns=now_ns)}, now_ns)
        told.append(pace.slowness(now_ns))
    (first, *_) = [one for one in told if one is not None]
    assert (first.ranks[0].in_parts, first.ranks[0].before.seconds) == (False, 1.0)
    assert first.ranks[0].now.seconds == 9.0


def test_no_pace_is_watched_where_nobody_wants_it() -> None:
    training = Training(0)
    training.pace = JobPace(None)
    assert training.steps(LEARNING).steps(100, r0=SLOW).told == []


HOURS = 3.0


@pytest.mark.parametrize("in_parts", [True, False], ids=["parts", "whole"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_usual_loop_is_called_slow(kind: Kind, *, in_parts: bool) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        assert told(kind(rng, 10 ** rng.uniform(0, 0.7)), HOURS, in_parts=in_parts) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_rank_is_called_so_once(seed: int) -> None:
    who, verdicts = told_of_slow_rank(random.Random(seed), 9.0, in_parts=True)
    assert [(one.culprits, one.victims) for one in verdicts] == [((who,), (1 - who,))]
    _, verdicts = told_of_slow_rank(random.Random(seed), 9.0, in_parts=False)
    assert [one.culprits for one in verdicts] == [(0, 1)]
    assert "parts of a step are not timed" in verdicts[0].summary
