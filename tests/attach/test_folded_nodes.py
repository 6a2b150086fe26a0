"""Evidence of a large job's nodes that is folded while it is read, against all of it at once."""

from __future__ import annotations

import pytest
from cases import gone, job
from msgspec.structs import replace
from nodes.mesh_jobs import Mesh, ranks_of

from lightning_hangcheck.attach.merging import FoldedNodes
from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import NodeCase, merge_cases
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.nodes import classes

RANKS_A_NODE = 4
MESH = Mesh(data=4, stages=2, tensor=4)


@pytest.fixture(autouse=True)
def _fold_small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hangcheck.attach.merging.FOLDED_ABOVE", 8)


def nodes_of(odd: str, number: int = 13) -> list[NodeCase]:
    """A mesh of 32 ranks on eight nodes, one of which does something else than the others."""
    world = MESH.data * MESH.stages * MESH.tensor
    made = ranks_of(MESH, {number: (odd, 3)} if odd else {})
    nodes = []
    for first in range(0, world, RANKS_A_NODE):
        views = [
            replace(made(one), host=f"node{first // RANKS_A_NODE}", pid=100 + one)
            for one in range(first, first + RANKS_A_NODE)
        ]
        case = job(*views, world_size=world, local_world_size=RANKS_A_NODE, nnodes=8)
        gap = Gap(f"a fact of node {first}", None, "no permission")
        nodes.append(NodeCase(f"node{first}", replace(case, gaps=(gap,))))
    return nodes


@pytest.mark.parametrize("odd", ["stalled", "other", "slow", ""])
def test_the_verdict_is_that_of_all_the_evidence_at_once(odd: str) -> None:
    nodes, read = nodes_of(odd), FoldedNodes()
    assert all(read.take(one) for one in nodes)
    whole, few = merge_cases(nodes, "merged"), merge_cases(read.joined(), "merged")
    assert len(few.ranks) < len(whole.ranks)
    expected, verdict = judge(whole), judge(few)
    assert verdict.verdict == expected.verdict
    assert (verdict.culprits, verdict.cause) == (expected.culprits, expected.cause)
    assert verdict.victims == expected.victims
    assert (verdict.world_size, verdict.nnodes) == (32, 8)
    assert few.gaps == whole.gaps
    assert {one.rank: (one.host, one.pid) for one in verdict.ranks} == {
        one.rank: (one.host, one.pid) for one in expected.ranks
    }


def test_what_is_not_one_standing_job_is_not_folded() -> None:
    first, *others = nodes_of("stalled")
    ended = replace(others[0], case=replace(others[0].case, ranks=(gone(4, 1),)))
    later = replace(others[0].case, run=replace(others[0].case.run, round=1))
    for refused in (first, ended, replace(others[0], case=later)):
        read = FoldedNodes()
        assert read.take(first)
        assert not read.take(refused)


def test_a_small_job_is_joined_rank_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while it runs."""
    monkeypatch.setattr("lightning_hangcheck.attach.merging.FOLDED_ABOVE", classes.FOLDED_ABOVE)
    read = FoldedNodes()
    assert not read.take(nodes_of("stalled")[0])
    assert read.empty
