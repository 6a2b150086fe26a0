"""Durations by name stay small whatever names come."""

from __future__ import annotations

from lightning_hangcheck.recorder.loops.steps import MOST_NAMES, MOST_SHOWN, OTHERS, StepTimes


def test_names_beyond_the_bound_share_one_entry() -> None:
    times = StepTimes()
    for number in range(1000):
        times.of(f"step {number}").add(1.0)
    assert len(times.by_name) == MOST_NAMES + 1
    assert times.by_name[OTHERS].count == 1000 - MOST_NAMES


def test_the_slowest_come_first_in_words() -> None:
    times = StepTimes()
    for number in range(MOST_SHOWN + 1):
        times.of(f"s{number}").add(float(number))
    times.of(f"s{MOST_SHOWN}").add(1.0)
    words = str(times)
    most = f"s{MOST_SHOWN} 2x, {MOST_SHOWN + 1} s in all, longest {MOST_SHOWN} s"
    assert words.startswith(f"; {most}; s{MOST_SHOWN - 1} {MOST_SHOWN - 1} s; ")
    assert words.endswith("; ...")


def test_joining_adds_counts_and_keeps_the_longest() -> None:
    inner, outer = StepTimes(), StepTimes()
    for seconds in (1.0, 3.0):
        inner.of("act").add(seconds)
    outer.of("act").add(2.0)
    outer.join(inner)
    act = outer.by_name["act"]
    assert (act.count, act.total_s, act.longest_s) == (3, 6.0, 3.0)
