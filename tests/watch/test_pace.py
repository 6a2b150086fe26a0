"""When steps are far below a rank's own pace, and when they have it again; also over hours.

Hours of steps are made as ranks would time them. Each kind is a loop of two ranks that wait for
each other in every step. Nothing in them is slow for as long as the limit, so whatever is told of
them is told wrongly; `told_of_slow_rank` has one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cases import IN_ALL_REDUCE, IN_BACKWARD, IN_LOAD, look
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.look.sample import Look, Target
from lightning_hangcheck.model.beat import Beat, Slowness, SlowRank, StepTimes
from lightning_hangcheck.model.case import Case, RankView, RunFacts
from lightning_hangcheck.watch.pace import GLANCES, LEARNT, WINDOW, Glances, JobPace

if TYPE_CHECKING:
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


SLOW = Slowness(
    for_s=200.0,
    ranks=tuple(
        SlowRank(rank=rank, before=StepTimes(), now=StepTimes(), known_s=1.0, level_s=9.0)
        for rank in (0, 1)
    ),
)


def seen(*stacks: tuple, state: str = "S") -> Look:
    """One look at rank 0, rank 1, and so on."""
    samples = [look(frames, state=state).samples[-1] for frames in stacks]
    return Look(
        samples=tuple(
            (Target(rank=rank, pid=100 + rank, role="rank"), sample)
            for rank, sample in enumerate(samples)
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


def test_backward_waits_only_where_it_sleeps() -> None:
    glances = Glances()
    glances.take(seen(IN_BACKWARD, state="R"))
    assert glances.added_to(SLOW).ranks[0].waited == 0
    glances.take(seen(IN_BACKWARD, state="S"))
    assert glances.added_to(SLOW).ranks[0].waited == 1


LIMIT_S = 80.0

USUAL = StepTimes(1, 0.2, 0.3, 0.5)

SLOW_STEP = StepTimes(1, 9.2, 0.3, 0.5)

LEARNING = 10 * (LEARNT + 3 * WINDOW)

"""Steps of a second after which a pace is learnt."""


class Training:
    """Ranks whose steps are told to a watch of their pace, one after the other."""

    def __init__(self, *ranks: int) -> None:
        self.pace = JobPace(LIMIT_S)
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
    slowness = training.until_told(r0=waiting, r1=SLOW_STEP)
    assert LIMIT_S <= training.now_s - before_s < 4 * LIMIT_S
    assert [one.rank for one in slowness.ranks] == [0, 1]
    assert slowness.for_s >= LIMIT_S
    _, slow = slowness.ranks
    assert (slow.before.loader_s, slow.now.loader_s) == (0.2, 9.2)
    assert slow.ratio == 10.0


def test_before_a_pace_is_learnt_none_is_lost() -> None:
    training = Training(0).steps(LEARNING // 3).steps(100, r0=SLOW_STEP)
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
        training.steps(WINDOW, r0=SLOW_STEP)
        training.pace.interrupt()
    assert training.told == []


def test_another_training_loop_has_another_pace() -> None:
    training = Training(0).steps(LEARNING)
    training.read(phase="trainer_init")
    assert training.steps(200, r0=SLOW_STEP).told == []


def test_it_is_told_once_and_once_that_the_pace_is_back() -> None:
    training = Training(0).steps(LEARNING)
    training.until_told(r0=SLOW_STEP)
    assert training.pace.recovered_s(int(training.now_s * SECOND)) is None
    training.steps(200, r0=SLOW_STEP)
    assert training.pace.recovered_s(int(training.now_s * SECOND)) is None
    assert training.told == []
    training.steps(100)
    slow_s = training.pace.recovered_s(int(training.now_s * SECOND))
    assert slow_s is not None
    assert slow_s > 200 * SLOW_STEP.seconds
    assert training.pace.recovered_s(int(training.now_s * SECOND)) is None
    training.steps(200)
    assert training.told == []


def test_what_came_and_went_twice_is_the_ranks_own_pace() -> None:
    training = Training(0).steps(LEARNING)
    for _ in range(2):
        training.until_told(r0=SLOW_STEP)
        training.steps(200)
        assert training.pace.recovered_s(int(training.now_s * SECOND)) is not None
    assert training.steps(60, r0=SLOW_STEP).told == []


def test_loops_without_parts_are_watched_by_their_steps() -> None:
    pace = JobPace(LIMIT_S)
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
    assert training.steps(LEARNING).steps(100, r0=SLOW_STEP).told == []


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
