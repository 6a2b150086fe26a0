"""Sends and receives: who waits for which other end, and where that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import MAIN, NOW_NS, job, rank, torch, user
from flights import AT_ITEM, on_device, posting, spinning
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.flight import CollectiveEntry, CollectiveRecord, Message

if TYPE_CHECKING:
    from cases import Frames

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.verdict import Verdict

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

    def after(seconds: float) -> Verdict:
        return judge(job(*(replace(one, silent_for_s=seconds) for one in (goes_on, receives))))

    assert [after(seconds).verdict for seconds in (299.0, 300.0)] == ["healthy", "hang"]
    verdict = after(300.0)
    assert (verdict.culprits, verdict.cause) == ((0, 1), "rank_diverged")
    assert ("rank:1", "rank:0") in {(edge.source, edge.target) for edge in verdict.wait_for}


def _queued(number: int, *messages: str, frames: Frames = AT_ITEM, ended: int = 0) -> RankView:
    """A rank that has posted these to its GPU, oldest first, of which some have ended there.

    As NCCL's record has them, and as ranks count them.
    """
    told = tuple(
        Message(
            seq=at,
            away=int(peer) - number,
            sends=kind == "send",
            retired=at <= ended,
            created_ns=NOW_NS + at,
        )
        for at, one in enumerate(messages, start=1)
        for kind, peer in [one.split()]
    )
    view = on_device(spinning(number, frames))
    assert view.flight is not None
    group = replace(view.flight.groups[0], messages=told)
    return posting(replace(view, flight=replace(view.flight, groups=(group,))), order=messages)


def test_stages_whose_gpus_hold_messages_behind_one_that_never_comes_wait_in_a_circle() -> None:
    """Stage 2 asks for a third micro-batch; the gradients are posted on all GPUs, behind that."""
    first = _queued(0, *2 * ["send 1"], *2 * ["recv 1"], ended=2)
    middle = _queued(1, *2 * ["recv 0", "send 2"], *2 * ["recv 2", "send 0"], ended=4)
    last = _queued(2, *3 * ["recv 1"], *3 * ["send 1"], ended=2)

    def after(seconds: float) -> Verdict:
        ranks = (replace(one, silent_for_s=seconds) for one in (first, middle, last))
        return judge(job(*ranks))

    assert after(299.0).verdict != "hang"  # a GPU may compute beside a message
    verdict = after(300.0)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1, 2), (0,))
    assert {(edge.source, edge.target) for edge in verdict.wait_for} == {
        ("rank:0", "rank:1"),
        ("rank:1", "rank:2"),
        ("rank:2", "rank:1"),
    }


def _averaging(view: RankView, group: str, ranks: tuple[int, ...], *, done: bool) -> RankView:
    """After its messages it has posted what averages gradients with the same stage elsewhere."""
    assert view.flight is not None
    after = CollectiveEntry(seq=1, op="all_reduce", retired=done, created_ns=NOW_NS + 100)
    record = CollectiveRecord(
        group=group, ranks=ranks, on_device=True, last_enqueued=1, entries=(after,)
    )
    return replace(view, flight=replace(view.flight, groups=(*view.flight.groups, record)))


def test_who_waits_behind_a_message_keeps_up_the_collective_that_it_has_posted() -> None:
    """Two pipelines of two stages; in the first one stage asks for one micro-batch too many."""
    stages = (
        _queued(0, *2 * ["send 1"], *2 * ["recv 1"], ended=2),
        _queued(1, *3 * ["recv 0"], *3 * ["send 0"], ended=2),
        _queued(2, *2 * ["send 3"], *2 * ["recv 3"], ended=4),
        _queued(3, *2 * ["recv 2"], *2 * ["send 2"], ended=4),
    )
    ranks = [
        _averaging(one, str(1 + one.rank % 2), (one.rank % 2, 2 + one.rank % 2), done=False)
        for one in stages
    ]
    verdict = judge(job(*(replace(one, silent_for_s=300.0) for one in ranks)))
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (0, 1), (2, 3))
    edges = {(edge.source, edge.target) for edge in verdict.wait_for}
    assert {("rank:2", "rank:0"), ("rank:3", "rank:1")} <= edges


def test_a_rank_whose_partner_waits_for_another_waits_for_that_one_too() -> None:
    """Rank 1 is in its own code. Rank 0 waits for it, with an operation behind that of rank 2."""
    own = (MAIN, user("load", 7))
    waits, away, behind = (
        _averaging(_queued(number, frames=frames), group, ranks, done=done)
        for number, frames, group, ranks, done in (
            (0, AT_ITEM, "1", (0, 1), False),
            (1, own, "2", (1,), True),
            (2, AT_ITEM, "3", (0, 2), False),
        )
    )
    assert waits.flight is not None
    later = CollectiveEntry(seq=1, op="all_reduce", created_ns=NOW_NS + 200)
    shared = CollectiveRecord(
        group="3", ranks=(0, 2), on_device=True, last_enqueued=1, entries=(later,)
    )
    groups = (*waits.flight.groups, shared)
    waits = replace(waits, flight=replace(waits.flight, groups=groups))
    verdict = judge(job(waits, replace(away, processes=rank(1, own).processes), behind))
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2))


def test_a_gpu_that_has_come_to_a_message_is_not_behind_in_it() -> None:
    """Both ends are at it: nothing shows that either stands before it."""
    ends = (_queued(0, "send 1", "send 2"), _queued(1, "recv 0"), _queued(2, "recv 0"))
    assert judge(job(*ends)).verdict == "healthy"


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
