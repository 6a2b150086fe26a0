"""What fails is a gap, lost time is said; the ranks' state at the start is shown once."""

from __future__ import annotations

import pytest

from lightning_hangcheck import log
from lightning_hangcheck.observe.watched_rank import Faults
from lightning_hangcheck.recorder.journal_writer import Entry, encode_entry
from lightning_hangcheck.watch.roster import PATIENCE_NS, StartStates
from lightning_hangcheck.watch.workers import Metronome

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def _said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_said", set())


def test_a_process_that_is_run_in_time_starves_of_nothing() -> None:
    starvation = Metronome(0)
    for quarter in range(1, 40):
        starvation.beat(quarter * SECOND // 4)
    assert starvation.read(10 * SECOND) == 0
    assert starvation.gaps == ()


def test_a_starved_sidecar_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    starvation = Metronome(0)
    starvation.beat(7 * SECOND)
    assert starvation.read(7 * SECOND) == 7 * SECOND
    (gap,) = starvation.gaps
    assert gap.what == "7 s of the job"
    assert "overloaded machine" in gap.why
    assert "overloaded machine" in capfd.readouterr().err


def test_who_reads_before_the_next_beat_is_told_and_the_same_time_is_not_told_twice() -> None:
    """After SIGCONT the loop may be run before the metronome is."""
    starvation = Metronome(0)
    starvation.beat(1 * SECOND)
    assert starvation.read(9 * SECOND) == 8 * SECOND
    starvation.beat(9 * SECOND + 1)
    assert starvation.read(9 * SECOND + 2) == 1
    starvation.beat(10 * SECOND)
    assert starvation.read(10 * SECOND) == 0


def test_a_loop_that_holds_itself_up_does_not_starve() -> None:
    """Its thread was late by 8 s, and that of the metronome was not."""
    starvation = Metronome(0)
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


PIDS = {0: 100, 1: 101}

NOW = 10**15


def line(pid: int, kind: str = "state", **facts: object) -> bytes:
    return encode_entry(Entry(kind, {"facts": facts}, 1, 1), pid)


def test_it_is_shown_once_all_have_spoken_and_only_once() -> None:
    states = StartStates()
    states.take(line(100, "said") + line(100, versions="python 3.11"))
    assert states.news(PIDS, NOW) is None
    states.take(line(101, versions="python 3.12"))
    shown = states.news(PIDS, NOW)
    assert shown is not None
    assert "versions: python 3.11 (rank 0); python 3.12 (rank 1)" in shown
    assert states.news(PIDS, NOW + PATIENCE_NS) is None
    assert states.news({0: 100}, NOW + PATIENCE_NS) is None, "rank 1 has ended; nothing is new"


def test_a_rank_that_does_not_speak_is_waited_for_and_then_named() -> None:
    states = StartStates()
    states.take(line(100, versions="python 3.11"))
    assert states.news(PIDS, NOW) is None
    assert states.news(PIDS, NOW + PATIENCE_NS - 1) is None
    shown = states.news(PIDS, NOW + PATIENCE_NS)
    assert shown is not None
    assert "of rank 1 nothing is known yet" in shown


def test_the_ranks_of_the_next_round_are_shown_again() -> None:
    states = StartStates()
    for pid in (100, 101, 200, 201):
        states.take(line(pid, versions="python 3.11"))
    assert states.news(PIDS, NOW) is not None
    assert states.news({0: 200, 1: 201}, NOW) is not None


def test_lines_that_say_something_else_are_passed_over() -> None:
    states = StartStates()
    states.take(line(100, versions=3) + b'{"kind":"state"}\n{"kind":"state","torn')
    assert states.news({0: 100}, NOW) is None
