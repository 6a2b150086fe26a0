"""The end of a job of several nodes: whoever failed by itself is named, on whichever node."""

from __future__ import annotations

from typing import Any

import pytest
from cases import IN_LOAD, NOW_NS, SECOND, gone, job, rank
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.gather.node_clocks import NodeCase
from lightning_hangcheck.gather.node_merge import merge_cases
from lightning_hangcheck.model.case import Case, RankView, SilentNode

LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4711"
FACTS: dict[str, Any] = {"world_size": 2, "local_world_size": 1, "nnodes": 2, "ended": True}


def ended(view: RankView, node: int, seen_s: float) -> NodeCase:
    assert view.process_exit is not None
    seen = replace(view.process_exit, seen_ns=NOW_NS + int(seen_s * SECOND))
    case = job(replace(view, process_exit=seen, host=f"node{node}"), **FACTS)
    return NodeCase(f"node {node}", case, 0.0)


def whole(*nodes: NodeCase) -> Case:
    return replace(merge_cases(nodes, "whole"), ended=True, exit_code=1)


@pytest.mark.parametrize("later_s", [-1.5, 1.5])
def test_who_was_killed_is_named_and_not_who_lost_its_connection(later_s: float) -> None:
    """What another node saw may come a second late, or be told a second late."""
    here = ended(gone(0, 1, words=LOST), 0, 0.0)
    there = ended(gone(1, -9), 1, later_s)
    verdict = judge(whole(here, there))
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("crashed", (1,), (0,))
    assert verdict.summary.startswith("rank 1 failed first: it was killed by SIGKILL")


def test_ends_are_in_one_order_through_all_nodes() -> None:
    here, there = ended(gone(0, 1, words="ValueError: 0"), 0, 5.0), ended(gone(1, -11), 1, 0.0)
    verdict = judge(whole(here, there))
    assert verdict.culprits == (1,)


def test_a_node_that_was_lost_is_blamed_where_others_lost_their_peers() -> None:
    lost = replace(rank(1, IN_LOAD), unheard_for_s=4.0, processes=())
    node = SilentNode(number=1, ranks="1", silent_s=4.0)
    facts = {**FACTS, "local_world_size": 2, "silent_nodes": (node,)}
    verdict = judge(job(gone(0, 1, words=LOST), lost, exit_code=1, **facts))
    assert (verdict.verdict, verdict.culprits) == ("crashed", (1,))
    assert verdict.summary.startswith(
        "rank 1 was lost with node 1: nothing was heard from there for 4 s; rank 0 failed then"
    )


def test_where_nothing_is_known_of_other_nodes_nobody_is_blamed_for_losing_a_peer() -> None:
    verdict = judge(job(gone(0, 1, words=LOST), exit_code=1, **FACTS))
    assert (verdict.verdict, verdict.culprits) == ("crashed", ())
    assert "rank 0 failed because it lost a peer" in verdict.summary
    assert "what became of rank 1, on other nodes, hangcheck run says there" in verdict.summary


def test_a_rank_that_fails_by_itself_is_blamed_whatever_is_not_known_of_others() -> None:
    verdict = judge(job(gone(0, 1, words="ValueError: bad batch"), exit_code=1, **FACTS))
    assert verdict.culprits == (0,)
