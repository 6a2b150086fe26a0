"""Ranks that others wait for, on a node that is no longer heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, job, rank
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.beat import Beat, CheckpointMark
from lightning_hangcheck.model.case import RankView, SilentNode

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict

MARK = Beat(pid=102, checkpoint=CheckpointMark(5, "Model created", ""))
CUT = SilentNode(
    number=1,
    ranks="2-3",
    silent_s=40.0,
    reach="unanswered",
    unanswered_s=39.0,
    last_known="checkpoint 5 (Model created), step 120",
)


def unheard(number: int) -> RankView:
    return replace(rank(number, beat=MARK), unheard_for_s=40.0, host="node1")


def verdict_of(node: SilentNode, *here: RankView, **fields: Any) -> Verdict:
    ranks = here or (rank(0, IN_ALL_REDUCE), rank(1, IN_ALL_REDUCE))
    return judge(job(*ranks, unheard(2), unheard(3), silent_nodes=(node,), **fields))


def waiting(silent: float) -> tuple[RankView, RankView]:
    return rank(0, IN_ALL_REDUCE, silent=silent), rank(1, IN_ALL_REDUCE, silent=silent)


def test_ranks_that_wait_for_a_node_that_cannot_be_reached_name_its_ranks() -> None:
    verdict = verdict_of(CUT)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("suspect", (2, 3), (0, 1))
    assert verdict.cause == "network_wait"
    assert verdict.summary.startswith(
        "ranks 2-3 cannot be reached: node 1 (ranks 2-3) has not been heard for 40 s: what is sent "
        "to its ranks has not been acknowledged for 39 s: its host is down, or the network is cut; "
        "last known there: checkpoint 5 (Model created), step 120"
    )
    assert "ranks 0-1 wait for them in all_reduce" in verdict.summary
    assert verdict.phase is not None
    assert "ping" in verdict.remedies[0].text
    assert {state.rank: state.state for state in verdict.ranks}[3] == "unseen"


def test_it_is_a_hang_after_the_stall_timeout_for_the_network_may_come_back() -> None:
    assert verdict_of(CUT, *waiting(299.0)).verdict == "suspect"
    assert verdict_of(CUT, *waiting(301.0)).verdict == "hang"


def test_how_long_others_have_waited_counts_not_how_long_the_node_was_silent() -> None:
    assert verdict_of(CUT, *waiting(1.0)).verdict == "healthy"


@pytest.mark.parametrize("reach", ["answers", "goes_on", "unknown"])
def test_of_a_node_that_may_only_have_lost_its_sidecar_nothing_is_suspected(reach: Any) -> None:
    """Its ranks may be computing: nobody sees them."""
    node = replace(CUT, reach=reach, unanswered_s=0.0)
    assert verdict_of(node).verdict == "healthy"
    verdict = verdict_of(node, *waiting(301.0))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (2, 3), "unknown")
    assert verdict.summary.startswith("ranks 2-3 are not seen: node 1 (ranks 2-3) has not been")


def test_a_rank_that_is_seen_to_be_late_is_blamed_alone() -> None:
    verdict = verdict_of(CUT, rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD))
    assert (verdict.verdict, verdict.culprits) == ("hang", (1,))


def test_ranks_that_advance_while_a_node_is_silent_are_no_news() -> None:
    assert verdict_of(CUT, rank(0, IN_LOAD, cpu=1.0, silent=0.2)).verdict == "healthy"
