"""Ranks that stand alike are told once, across groups of a mesh too, and judged the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_ALL_REDUCE, IN_BARRIER, IN_LOAD, IN_LOADER, SECOND, gone, job, rank, worker
from flights import flying, spinning
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from mesh_jobs import OF_TENSORS, Mesh, Oddity, ranks_of
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.nodes.encoding import pack, read_message
from lightning_hangcheck.nodes.message import FOLDED_ABOVE, message_of
from lightning_hangcheck.nodes.who_judges import PeerState
from lightning_hangcheck.watch.join_nodes import (
    join_peers,
    silent_node,
    wanted_of,
    with_silent_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.verdict import Verdict

A_NODE = 4

HELD_NS = 1 << 40

SILENT_NS = 20 * SECOND


def told_to_first(views: Sequence[RankView], *, folded: bool, silent: int = 0) -> Case:
    """The case of the first node once all others have told it; one may be silent since."""
    world = len(views)
    nnodes = -(-world // A_NODE)
    above = 0 if folded else world
    cases = [
        job(
            *views[node * A_NODE : (node + 1) * A_NODE],
            world_size=world,
            local_world_size=min(A_NODE, world - node * A_NODE),
            nnodes=nnodes,
        )
        for node in range(nnodes)
    ]
    heard = [told(case, node, above) for node, case in enumerate(cases)][1:]
    if folded:
        wanted = wanted_of(heard, FOLDED_ABOVE + 1)
        heard = [told(case, node, above, wanted) for node, case in enumerate(cases)][1:]
    since_ns = cases[0].taken_ns - SILENT_NS
    gone = [replace(one, received_ns=since_ns) for one in heard if silent == one.message.node]
    there = [one for one in heard if silent != one.message.node]
    unheard = [silent_node(one, SILENT_NS / SECOND, (), ()) for one in gone]
    case = join_peers(cases[0], there, gone)
    return with_silent_nodes(cases[0], case, (), unheard, ())


def told(case: Case, node: int, above: int, wanted: Sequence[int] = ()) -> PeerState:
    message = message_of(case, node, 1, wanted=wanted, folded_above=above)
    return PeerState(read_message(pack(message)), HELD_NS)


def both(views: Sequence[RankView], silent: int = 0) -> tuple[Verdict, Verdict, Case]:
    case = told_to_first(views, folded=True, silent=silent)
    alone = told_to_first(views, folded=False, silent=silent)
    return judge(case), judge(alone), case


def comparable(verdict: Verdict) -> Verdict:
    """Without what is told of one process alone: of many that stand alike few are described."""
    rows = tuple(replace(row, host="", pid=None, local_rank=None) for row in verdict.ranks)
    evidence = tuple(one for one in verdict.evidence if one.rank is None)
    return replace(verdict, ranks=rows, evidence=evidence)


KINDS: dict[str, Callable[[int], RankView]] = {
    "waits": lambda number: flying(rank(number, IN_ALL_REDUCE), "all_reduce 4", "all_reduce 4"),
    "elsewhere": lambda number: flying(rank(number, IN_BARRIER), "all_reduce 4", "barrier"),
    "unrecorded": lambda number: rank(number, IN_ALL_REDUCE),
    "stalled": lambda number: flying(rank(number, IN_LOAD), "all_reduce 4", open_ops=0),
    "idle": lambda number: rank(number, IN_LOAD),
    "dead": lambda number: gone(number, -9),
    "spins": spinning,
    "calm": lambda number: rank(number, silent=0.2),
    "at its loader": lambda number: rank(number, IN_LOADER, children=(worker(0, IN_LOAD),)),
    "at its worker": lambda number: rank(number, IN_LOAD, children=(worker(0, IN_LOAD),)),
}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    some.lists(some.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True),
    some.integers(5, 60) | some.just(200),
    some.randoms(use_true_random=False),
    some.integers(0, 3),
)
def test_the_folded_job_is_judged_as_the_unfolded_one(
    kinds: list[str], world: int, random: Any, odd: int
) -> None:
    usual, *others = kinds
    chosen = [usual] * world
    for other in others:
        for number in random.sample(range(world), min(odd, world)):
            chosen[number] = other
    views = [KINDS[kind](number) for number, kind in enumerate(chosen)]
    folded, unfolded, case = both(views)
    assert comparable(folded) == comparable(unfolded)
    assert len(case.ranks) <= A_NODE + 2 * len(kinds)


def test_ranks_of_a_silent_node_are_known_where_they_were_folded() -> None:
    """All that is said of them is who they are: what they do by now, nobody knows."""
    views = [replace(KINDS["waits"](number), silent_for_s=4_000.0) for number in range(40)]
    folded, unfolded, case = both(views, silent=3)
    assert comparable(folded) == comparable(unfolded)
    assert folded.culprits == (12, 13, 14, 15)
    assert case.run.silent_nodes[0].ranks == "12-15"
    assert len(case.ranks) == A_NODE + 2


MESHES = [
    Mesh(data, stages, tensor)
    for data in (1, 2, 4, 8)
    for stages in (1, 2, 4)
    for tensor in (1, 2, 4)
    if 8 <= data * stages * tensor <= 64 and (data > 1 or tensor > 1)
]


def answers(verdict: Verdict) -> tuple[object, ...]:
    return verdict.verdict, verdict.culprits, verdict.victims, verdict.cause, verdict.phase


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(some.data())
def test_a_mesh_is_judged_as_if_nobody_were_folded(data: some.DataObject) -> None:
    mesh = data.draw(some.sampled_from(MESHES))
    kinds = ["stalled", "other", "skips"] if mesh.tensor > 1 else ["stalled"]
    oddities = some.tuples(some.sampled_from(kinds), some.integers(0, OF_TENSORS - 1))
    odd = data.draw(some.dictionaries(some.integers(0, mesh.world - 1), oddities, max_size=3))
    view = ranks_of(mesh, odd)
    folded, unfolded, case = both([view(number) for number in range(mesh.world)])
    assert answers(folded) == answers(unfolded)
    assert set(folded.wait_for) == set(unfolded.wait_for)
    assert len(case.ranks) <= A_NODE + (mesh.stages + 1) * (len(odd) + 1) * 8


@pytest.mark.parametrize("odd", ["stalled", "other"])
def test_the_odd_one_is_found_across_groups(odd: Oddity) -> None:
    """Its tensor group waits for it, stages beside for that, and all other replicas for them."""
    mesh = Mesh(8, 4, 2)
    view = ranks_of(mesh, {21: (odd, 2)})
    folded, unfolded, case = both([view(number) for number in range(mesh.world)])
    assert set(folded.wait_for) == set(unfolded.wait_for)
    assert set(folded.culprits) <= {20, 21}
    assert 21 in folded.culprits
    assert len(case.ranks) < mesh.world / 2
    assert {*folded.victims, *folded.culprits} == set(range(mesh.world))
    labels = {edge.through for edge in folded.wait_for}
    assert labels >= {"in all_reduce of mesh_tensor", "in all_reduce of mesh_data", "in recv"}


def test_a_slow_stage_is_no_hang() -> None:
    """All replicas wait for ranks of one stage, which go on through their layers."""
    mesh = Mesh(4, 4, 2)
    slow = [number for number in range(mesh.world) if mesh.seat(number)[1] == 1]
    view = ranks_of(mesh, dict.fromkeys(slow, ("slow", 1)))
    folded, unfolded, _ = both([view(number) for number in range(mesh.world)])
    assert folded.verdict == unfolded.verdict == "healthy"
