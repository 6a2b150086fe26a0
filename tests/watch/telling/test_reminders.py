"""A verdict that stands is told again after 2, 4, 8... minutes, and not in between."""

from __future__ import annotations

from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.telling.reminders import Reminders

MINUTE_NS = 60 * NANOSECONDS


def told_at(reminders: Reminders, kind: str | None, first: int, last: int) -> list[int]:
    """The minutes at which a reminder is due, asked every minute."""
    asked = range(first, last)
    return [m for m in asked if reminders.due(kind, m * MINUTE_NS) is not None]  # type: ignore[arg-type]


def test_each_reminder_comes_after_twice_the_time() -> None:
    assert told_at(Reminders(), "suspect", 10, 45) == [12, 14, 18, 26, 42]


def test_one_that_comes_late_says_how_late_and_is_not_repeated() -> None:
    reminders = Reminders()
    assert reminders.due("hang", 0) is None
    assert reminders.due("hang", 9 * MINUTE_NS) == 540.0
    assert told_at(reminders, "hang", 10, 20) == [16]


def test_a_worse_verdict_and_one_after_a_calm_begin_anew() -> None:
    reminders = Reminders()
    assert told_at(reminders, "suspect", 0, 4) == [2]
    assert told_at(reminders, "hang", 4, 8) == [6]
    assert told_at(reminders, None, 8, 100) == []
    assert told_at(reminders, "hang", 100, 104) == [102]
