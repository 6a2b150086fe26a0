"""When the ranks' state at the start is shown: as lines of their journals come by."""

from __future__ import annotations

from lightning_hangcheck.recorder.journal_writer import Entry, encode_entry
from lightning_hangcheck.watch.start_states import PATIENCE_NS, StartStates

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
