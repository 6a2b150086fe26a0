"""Amounts as people read them."""

from __future__ import annotations

import pytest

from lightning_hangcheck.text.amounts import seconds_in_words


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
