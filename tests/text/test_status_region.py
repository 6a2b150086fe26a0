"""Sequences that keep lines of a terminal: they leave the others' cursor, colours and lines."""

from __future__ import annotations

import re

import pytest

from lightning_hangcheck.text.status_region import (
    GIVEN_UP,
    RESTORED,
    SAVED,
    Size,
    drawn,
    made,
    most_lines,
    taken_away,
)

SCREEN = Size(80, 24)
LINES = [("-- 2 of 2 ranks run here", "dim"), ("HANG  rank 1", "bold red"), ("0  runs", "")]


@pytest.mark.parametrize(
    "sequence",
    [drawn(SCREEN, LINES, colours=True), taken_away(SCREEN, 3), made(SCREEN, 3), GIVEN_UP],
)
def test_whatever_moves_the_cursor_stands_between_saving_and_restoring_it(sequence: str) -> None:
    outside = re.sub(f"{SAVED}.*?{RESTORED}", "", sequence)
    assert not re.search(r"\x1b\[[0-9;]*[Hr]", outside)
    assert "\n" not in sequence
    assert sequence.count(SAVED) == sequence.count(RESTORED)


def test_the_region_is_the_last_lines_and_the_margins_end_above_it() -> None:
    sequence = drawn(SCREEN, LINES, colours=False)
    assert "\x1b[1;21r" in sequence
    assert [int(line) for line in re.findall(r"\x1b\[(\d+);1H", sequence)] == [22, 23, 24]


def test_room_is_made_by_moving_up_what_was_printed_and_the_cursor_with_it() -> None:
    assert "\x1bD\x1bD\x1bD\x1b[3A" in made(SCREEN, 3)


def test_without_colours_no_line_has_any() -> None:
    plain = drawn(SCREEN, LINES, colours=False)
    assert not re.search(r"\x1b\[[1-9][0-9;]*m", plain)
    assert "\x1b[1;31mHANG  rank 1\x1b[0m" in drawn(SCREEN, LINES, colours=True)


def test_a_tiny_terminal_belongs_to_the_job_and_half_of_any_other() -> None:
    assert most_lines(SCREEN) == 12
    assert most_lines(Size(80, 6)) == 3
    assert most_lines(Size(80, 5)) == most_lines(Size(19, 24)) == 0
