"""Ranks of a device mesh are folded across its groups, and judged as if each were told alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from mesh_jobs import OF_TENSORS, Mesh, Oddity, ranks_of
from test_folding import A_NODE, both

from lightning_hangcheck.judge.alike import (
    can_be_families,
    groups_in,
    joined_families,
    numbers_in,
    offsets_of,
    without_members,
)
from lightning_hangcheck.model.flight import CollectiveRecord, GroupFamily, GroupRun

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict

MESHES = [
    Mesh(data, stages, tensor)
    for data in (1, 2, 4, 8)
    for stages in (1, 2, 4)
    for tensor in (1, 2, 4)
    if 8 <= data * stages * tensor <= 64 and (data > 1 or tensor > 1)
]


def told(verdict: Verdict) -> tuple[object, ...]:
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
    assert told(folded) == told(unfolded)
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


def test_who_left_a_message_out_is_sought_among_those_that_wait_for_each_other() -> None:
    """One that only stalls left out as many, and waits for nobody."""
    mesh = Mesh(4, 2, 2)
    view = ranks_of(mesh, {0: ("stalled", 0), 4: ("skips", 1)})
    folded, unfolded, _ = both([view(number) for number in range(mesh.world)])
    assert told(folded) == told(unfolded)
    assert 4 in folded.culprits


def test_a_slow_stage_is_no_hang() -> None:
    """All replicas wait for ranks of one stage, which go on through their layers."""
    mesh = Mesh(4, 4, 2)
    slow = [number for number in range(mesh.world) if mesh.seat(number)[1] == 1]
    view = ranks_of(mesh, dict.fromkeys(slow, ("slow", 1)))
    folded, unfolded, _ = both([view(number) for number in range(mesh.world)])
    assert folded.verdict == unfolded.verdict == "healthy"


def test_groups_of_one_shape_are_told_as_one() -> None:
    """Of 64 groups of a mesh what is told is the shape, where they begin and how names grow."""
    mesh = Mesh(16, 2, 4)
    view = ranks_of(mesh, {})
    families = [without_members(view(number))[1] for number in range(mesh.world)]
    tensor, data = joined_families(families)
    assert tensor == GroupFamily((0, 1, 4), (GroupRun(0, 4, 32, "1", 1),))
    assert data == GroupFamily((0, 8, 16), (GroupRun(0, 1, 8, "33", 1),))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(some.lists(some.integers(0, 40), min_size=1, max_size=12, unique=True))
def test_any_members_are_told_and_read_again(ranks: list[int]) -> None:
    record = CollectiveRecord(group="a", ranks=tuple(ranks))
    assert tuple(ranks[0] + one for one in numbers_in(offsets_of(record))) == record.ranks


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    some.dictionaries(
        some.integers(0, 60),
        some.integers(0, 30).map(str) | some.sampled_from(["", "a3f0", "007"]),
        min_size=1,
    )
)
def test_any_names_are_told_and_read_again(names: dict[int, str]) -> None:
    alone = [(GroupFamily((0, 1, 2), (GroupRun(at, 1, 1, name),)),) for at, name in names.items()]
    (family,) = joined_families(alone)
    assert dict(groups_in(family)) == names


@pytest.mark.parametrize(
    "odd",
    [
        GroupFamily((0, 1), (GroupRun(0, 1, 1, "1"),)),
        GroupFamily((0, 0, 4), (GroupRun(0, 1, 1, "1"),)),
        GroupFamily((0, 1, -4), (GroupRun(0, 1, 1, "1"),)),
        GroupFamily((0, 1, 4), (GroupRun(-1, 1, 1, "1"),)),
        GroupFamily((0, 1, 4), (GroupRun(98, 1, 1, "1"),)),
        GroupFamily((0, 1, 4), (GroupRun(0, 1, 1 << 40, "1"),)),
        GroupFamily((0, 1, 4), (GroupRun(0, 1, 2, "x", 1),)),
        GroupFamily((0, 1, 60), (GroupRun(0, 1, 30, "1", 1),)),
        GroupFamily((), (GroupRun(0, 1, 1, "1"),)),
        GroupFamily((0, 1, 4)),
    ],
)
def test_groups_that_cannot_be_are_refused(odd: GroupFamily) -> None:
    assert can_be_families((GroupFamily((0, 1, 4), (GroupRun(0, 4, 8, "1", 1),)),), 1, 100)
    assert not can_be_families((odd,), 1, 100)
