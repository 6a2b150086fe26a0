"""The clock of a step counts whole steps only, and each part where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.hooks import callbacks
from lightning_hangcheck.hooks.callbacks import FIRST_STEPS, StepClock
from lightning_hangcheck.recorder.page import PageWriter, read_page
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.beat import StepTimes


class Loop:
    """A training loop whose parts take as long as they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = NANOSECONDS
        monkeypatch.setattr(callbacks, "monotonic_ns", lambda: self.now_ns)
        self.clock, self.page = StepClock(), PageWriter.unseen()

    def steps(self, count: int, loader_s: float, forward_s: float, rest_s: float) -> int:
        """Go through whole steps; return how many of them were timed."""
        timed = 0
        for _ in range(count):
            self.now_ns += round(loader_s * NANOSECONDS)
            is_timed = self.clock.batch_comes(self.page)
            self.now_ns += round(forward_s * NANOSECONDS)
            if is_timed:
                self.clock.backward_comes(None, None)
            self.now_ns += round(rest_s * NANOSECONDS)
            if is_timed:
                self.clock.batch_is_done(None, None)
            timed += is_timed
        return timed

    @property
    def times(self) -> StepTimes | None:
        return read_page(self.page.buffer).step_times


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_each_part_of_a_slow_step_is_timed(loop: Loop) -> None:
    loop.steps(FIRST_STEPS, 9.0, 9.0, 9.0)
    loop.steps(11, 0.1, 0.2, 0.3)
    assert loop.times is not None
    mean = loop.times.a_step()
    assert loop.times.steps == 10
    assert mean.loader_s == pytest.approx(0.1)
    assert (mean.forward_s, mean.rest_s) == (pytest.approx(0.2), pytest.approx(0.3))


def test_of_fast_steps_few_are_timed(loop: Loop) -> None:
    assert loop.steps(10_000, 0.0001, 0.0002, 0.0002) <= 10_000 * 0.0005 / 0.05 + 1


def test_what_an_evaluation_interrupts_is_no_step(loop: Loop) -> None:
    loop.steps(FIRST_STEPS, 0.1, 0.1, 0.1)
    loop.steps(3, 0.1, 0.1, 0.1)
    loop.clock.interrupt()
    loop.now_ns += 100 * NANOSECONDS
    loop.steps(3, 5.0, 5.0, 5.0)
    assert loop.times is not None
    assert loop.times.steps == 3, "the one before it lacks its end, the first after it is left out"
    assert loop.times.loader_s == pytest.approx(0.1 + 0.1 + 5.0)
