"""Amounts as people read them; moments in one form, read in every form that means UTC."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lightning_hangcheck.text.shown import (
    Precision,
    before,
    moment_of,
    read_utc,
    seconds_in_words,
    utc,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "<1 ms"),
        (0.31, "0.31 s"),
        (41.2, "41.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (125.4, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
    ],
)
def test_a_duration_is_never_an_exponent(seconds: float, words: str) -> None:
    assert seconds_in_words(seconds) == words


MOMENT = datetime(2026, 11, 20, 10, 23, 45, 123999, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("precision", "text"),
    [
        ("seconds", "2026-11-20T10:23:45Z"),
        ("milliseconds", "2026-11-20T10:23:45.123Z"),
        ("microseconds", "2026-11-20T10:23:45.123999Z"),
    ],
)
def test_what_is_finer_than_the_precision_is_cut_off(precision: Precision, text: str) -> None:
    assert utc(MOMENT, precision) == text


def test_a_moment_is_written_as_utc_with_all_its_digits() -> None:
    assert utc(MOMENT.astimezone(timezone(timedelta(hours=2)))) == "2026-11-20T10:23:45.123Z"
    assert utc(MOMENT.replace(microsecond=0)) == "2026-11-20T10:23:45.000Z"


@pytest.mark.parametrize("fraction", ["", ".5", ".50", ".500000", ".500000000"])
def test_a_fraction_of_any_length_is_read(fraction: str) -> None:
    expected = MOMENT.replace(microsecond=500_000 if fraction else 0)
    assert read_utc(f"2026-11-20T10:23:45{fraction}Z") == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-20T10:23:45+02:00", "2026-13-01"])
def test_what_is_no_moment_of_utc_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever reads it
        read_utc(text)


def test_moments_are_reckoned() -> None:
    assert before("2026-11-20T00:00:01.250Z", 2.0) == "2026-11-19T23:59:59.250Z"
    assert moment_of(1_795_170_225_123_999_999) == MOMENT
