"""Rank ranges: what is written is what is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lightning_hangcheck.text.shown import LARGEST_RANK, format_ranks, parse_ranks

rank_lists = some.lists(some.integers(0, 60) | some.integers(0, LARGEST_RANK))


@given(rank_lists)
def test_ranges_read_back_as_the_ranks_in_order(ranks: list[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == tuple(sorted(set(ranks)))


@given(some.text(some.sampled_from("0123456789-, x²"), max_size=12))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    try:
        ranks = parse_ranks(text)
    except ValueError as error:
        message = str(error)
    else:
        assert parse_ranks(format_ranks(ranks)) == ranks
        return
    assert "write for example" in message or "not an ascending range" in message


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([8, 0, 1, 2, 2], "0-2,8"), (range(4096), "0-4095"), ([3, 5, 7], "3,5,7")],
)
def test_ranges_look_so(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


@pytest.mark.parametrize("text", ["-1", "1-", "3-1", "a", "1-2-3", "0-99999999", "1.5"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_ranks(text)
