"""Sends and receives: who waits for which other end, and where that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import MAIN, job, rank, torch, user
from flights import on_device, posting, spinning
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lightning_hangcheck.judge import judge

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

IN_RECV = (MAIN, user("forward", 20), torch("recv"))
IN_SEND = (MAIN, user("backward", 25), torch("send"))


def test_two_that_wait_for_each_other_in_messages_of_other_tags_are_told() -> None:
    """As many were sent as received, so by number they match, and no byte goes anywhere."""
    sends = posting(rank(0, IN_SEND, silent=6.0), sent={1: 17}, received={1: 16})
    asks = posting(rank(1, IN_RECV, silent=6.0), sent={0: 16}, received={0: 17})
    verdict = judge(job(sends, asks))
    assert (verdict.verdict, verdict.culprits) == ("suspect", (0, 1))
    later = judge(job(*(replace(one, silent_for_s=31.0, idle_for_s=31.0) for one in (sends, asks))))
    assert (later.verdict, later.cause) == ("hang", "collective_mismatch")
    assert "tags" in later.summary
    assert "tag" in later.remedies[0].text


def test_two_stages_whose_messages_differ_are_told_and_the_stages_beside_them_wait() -> None:
    """Stage 1 dropped a micro-batch, and sends the next one under that one's number."""
    verdict = judge(
        job(
            posting(rank(0, IN_RECV, silent=31.0), sent={1: 17}, received={1: 17}),
            posting(rank(1, IN_SEND, silent=31.0), sent={0: 16, 2: 17}, received={0: 17, 2: 16}),
            posting(rank(2, IN_RECV, silent=31.0), sent={1: 16, 3: 16}, received={1: 17, 3: 16}),
            posting(rank(3, IN_RECV, silent=31.0), sent={2: 16}, received={2: 17}),
        )
    )
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1, 2), (0, 3))
    assert verdict.cause == "collective_mismatch"
    assert verdict.summary.startswith(
        "ranks 1-2 have waited for 31 s: rank 1 in send called in backward (demo/train.py:25), "
        "rank 2 in recv"
    )
    assert "their tags, groups or sizes differ; ranks 0,3 wait for them" in verdict.summary


def test_a_rank_whose_device_keeps_it_for_a_message_waits_for_the_other_end() -> None:
    """Rank 1 asks its GPU for a number behind a receive for which rank 0 never sends.

    The GPU may as well work beside a receive that was posted early: that has a computation's time.
    """
    receives = posting(on_device(spinning(1), first=41), received={0: 1})
    goes_on = posting(on_device(spinning(0), "barrier", first=41))
    assert judge(job(goes_on, receives)).verdict == "healthy"
    ranks = [replace(one, silent_for_s=300.0) for one in (goes_on, receives)]
    verdict = judge(job(*ranks))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0, 1), "rank_diverged")
    assert ("rank:1", "rank:0") in {(edge.source, edge.target) for edge in verdict.wait_for}


HALO = [7, -7, 9, -9]
"""Sent to rank 6, asked of rank 6, sent to rank 8, asked of rank 8: none of them is seen."""


def _names_first(posted: list[int]) -> bool:
    """Whether rank 0 is named for what it posted, where ranks 1 and 2 follow their steps."""

    def receives(number: int, newest: list[int]) -> RankView:
        words = [f"{'send' if one > 0 else 'recv'} {abs(one) - 1}" for one in newest]
        return posting(rank(number, IN_RECV), order=words)

    return judge(job(receives(0, posted), *(receives(n, 9 * HALO) for n in (1, 2)))).culprits == (
        0,
    )


@pytest.mark.parametrize(
    ("posted", "departs"),
    [
        (10 * HALO, False),
        (10 * HALO + HALO[:3], False),
        ([8, 8, 5, *10 * HALO], False),
        ([*HALO[2:], *10 * HALO, 5], True),
        (10 * HALO + [-9], True),
        (10 * HALO + [7, 7], True),
        (10 * HALO + [5] + 2 * HALO, False),
        (2 * HALO + [5], False),
        (20 * [5], False),
        ([*20 * [5], -5], True),
        (list(range(10, 60)), False),
    ],
)
def test_a_pattern_is_what_was_repeated_three_times(posted: list[int], *, departs: bool) -> None:
    assert _names_first(posted) is departs


@given(st.lists(st.integers(4, 6) | st.integers(-6, -4), min_size=1, max_size=60))
def test_whatever_was_posted_a_repetition_is_one(posted: list[int]) -> None:
    """Three times the same and a beginning of it is no departure."""
    assert not _names_first([*3 * posted, *posted[: len(posted) // 2]])
