"""Which operation earlier steps lead to."""

from __future__ import annotations

import pytest

from lightning_hangcheck.diagnosis.divergence.attribution import expected_next


@pytest.mark.parametrize(
    ("history", "candidates", "shortest", "expected"),
    [
        ("babababab", "ab", 2, "a"),  # each step is b, a
        ("aaaaaa", "ax", 2, "a"),
        ("abcabcab", "cx", 2, "c"),
        ("xbaba" + "b", "bc", 2, None),  # neither ever followed
        ("", "ab", 0, None),
        ("a", "ab", 0, "a"),  # only a was ever seen
        ("a", "ab", 2, None),
        ("ab", "ab", 0, None),  # both were seen
        ("abab" + "acac" + "a", "bc", 1, "c"),  # the longest context decides
        ("ab" + "ac" + "a", "bc", 1, None),  # both followed, after an equal context
        (3 * ("a" * 40 + "b") + "a" * 40, "ab", 2, "b"),  # however long it takes to come round
        (3 * ("a" * 40 + "b") + "a" * 25, "ab", 2, "a"),
        ("a" * 40 + "b" + "a" * 40, "ab", 2, None),  # once is no rhythm
        ("a" * 9 + "b" + "a" * 9, "ab", 2, "b"),
    ],
)
def test_what_followed_the_same_operations_before_is_expected(
    history: str, candidates: str, shortest: int, expected: str | None
) -> None:
    assert expected_next(history, candidates, shortest) == expected
