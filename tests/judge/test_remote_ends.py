"""Connections between nodes: who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import NodeCase, merge_cases
from lightning_hangcheck.model.evidence import Connection, WaitTarget
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView

HERE, THERE = "10.0.0.1:4001", "10.0.0.2:29500"
FACTS: dict[str, Any] = {"world_size": 2, "local_world_size": 1, "nnodes": 2}


def asking(host: str, **fields: Any) -> RankView:
    target = WaitTarget(call="recvfrom", kind="socket", name=THERE, own_end=HERE)
    return replace(rank(0, IN_LOAD, waits_for=(target,), **fields), host=host)


def with_connection(view: RankView, own: str, remote: str) -> RankView:
    (look,) = view.processes
    samples = [
        replace(one, kernel=replace(one.kernel, connections=(Connection(own, remote),)))
        for one in look.samples
        if one.kernel is not None
    ]
    return replace(view, processes=(replace(look, samples=tuple(samples)),))


def merged(*views: RankView) -> Case:
    cases = [NodeCase(view.host, job(view, **FACTS)) for view in views]
    return merge_cases(cases, "merged")


@pytest.mark.parametrize("host", ["node1", "node0"])
def test_a_rank_that_waits_at_a_connection_waits_for_the_rank_at_its_other_end(host: str) -> None:
    """Two nodes of one name are network namespaces of one host."""
    answers = replace(with_connection(rank(1, IN_BARRIER), THERE, HERE), host=host)
    verdict = judge(merged(asking("node0"), answers))
    assert Edge("rank:0", "rank:1", "in recvfrom") in verdict.wait_for


def test_the_process_at_the_other_end_is_told_by_its_host_not_by_its_number_alone() -> None:
    """Rank 1 has the process id that rank 0 has on its own node."""
    answers = with_connection(replace(rank(0, IN_BARRIER), rank=1, host="node1"), THERE, HERE)
    verdict = judge(merged(asking("node0"), answers))
    assert Edge("rank:0", "rank:1", "in recvfrom") in verdict.wait_for


def test_another_connection_between_the_same_nodes_leads_nowhere() -> None:
    other = replace(with_connection(rank(1, IN_LOAD), THERE, "10.0.0.1:4002"), host="node1")
    verdict = judge(merged(asking("node0"), other))
    assert Edge("rank:0", f"host:{THERE}", "in recvfrom") in verdict.wait_for
