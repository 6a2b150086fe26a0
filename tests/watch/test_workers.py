"""What fails is a gap, and a sidecar that was not run counts that time for nobody, and says so."""

from __future__ import annotations

import pytest

from lightning_hangcheck import log
from lightning_hangcheck.watch.workers import Faults, Starvation

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def _said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_said", set())


def test_a_process_that_is_run_in_time_starves_of_nothing() -> None:
    starvation = Starvation(0)
    for quarter in range(1, 40):
        starvation.beat(quarter * SECOND // 4)
    assert starvation.read(10 * SECOND) == 0
    assert starvation.gaps == ()


def test_a_starved_sidecar_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    starvation = Starvation(0)
    starvation.beat(7 * SECOND)
    assert starvation.read(7 * SECOND) == 7 * SECOND
    (gap,) = starvation.gaps
    assert gap.what == "7 s of the job"
    assert "overloaded machine" in gap.why
    assert "overloaded machine" in capfd.readouterr().err


def test_who_reads_before_the_next_beat_is_told_and_the_same_time_is_not_told_twice() -> None:
    """After SIGCONT the loop may be run before the metronome is."""
    starvation = Starvation(0)
    starvation.beat(1 * SECOND)
    assert starvation.read(9 * SECOND) == 8 * SECOND
    starvation.beat(9 * SECOND + 1)
    assert starvation.read(9 * SECOND + 2) == 1
    starvation.beat(10 * SECOND)
    assert starvation.read(10 * SECOND) == 0


def test_a_loop_that_holds_itself_up_does_not_starve() -> None:
    """Its thread was late by 8 s, and that of the metronome was not."""
    starvation = Starvation(0)
    assert starvation.read(0) == 0
    for quarter in range(1, 33):
        starvation.beat(quarter * SECOND // 4)
    assert starvation.read(8 * SECOND) == 0


def test_what_fails_is_a_gap_of_its_rank_said_once_and_what_comes_after_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    faults, seen = Faults(), []
    for rank in (0, 1, 1):
        with faults.of("what it does", rank):
            seen.append(1 // rank)
    with faults.of("a verdict"):
        raise KeyError("x")
    with faults.of("a verdict"):
        raise ValueError("y")
    assert seen == [1, 1]
    told = [(gap.what, gap.rank) for gap in faults.gaps]
    assert told == [("what it does", 0), ("a verdict", None)]
    assert "ZeroDivisionError" in faults.gaps[0].why
    assert "ValueError: y" in faults.gaps[1].why
    assert capfd.readouterr().err.count("the watch goes on") == 2


def test_whoever_interrupts_is_no_fault() -> None:
    with pytest.raises(KeyboardInterrupt), Faults().of("a verdict"):
        raise KeyboardInterrupt
