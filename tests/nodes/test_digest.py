"""What a node tells comes out as it went in, joins in any order, and carries no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cases import IN_BARRIER, IN_LOAD, NOW_NS, job, rank, worker
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lightning_hangcheck.gather.node_view import rebased
from lightning_hangcheck.nodes.digest import TAKEN_NS, NodeDigest, digest_of, merge_digests
from lightning_hangcheck.nodes.encoding import DEEPEST_STACK, pack, unpack

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case


def node(number: int, stamp: int = 1, case: Case | None = None) -> NodeDigest:
    first = 2 * number
    views = rank(first, IN_BARRIER), rank(first + 1, IN_LOAD, children=(worker(0, IN_LOAD),))
    return digest_of(case or job(*views, world_size=8), number, stamp)


def test_a_digest_comes_out_as_it_went_in_on_another_clock() -> None:
    case = job(rank(0, IN_BARRIER), rank(1, IN_LOAD, children=(worker(0, IN_BARRIER),)))
    _, (told,), _ = unpack(pack(node(0, case=case)))
    assert told.views == rebased(case, TAKEN_NS - NOW_NS).ranks


def test_the_same_calls_are_told_once() -> None:
    alone, both = node(0), merge_digests([node(0), node(1)])
    assert both.tree == alone.tree
    assert len(alone.tree.frames) == len({*IN_BARRIER, *IN_LOAD})
    assert len(both.tree.stacks(DEEPEST_STACK)) == 1 + len({*IN_BARRIER, *IN_LOAD})


def test_a_rank_that_gets_on_tells_no_stacks() -> None:
    (told,) = node(0, case=job(rank(0, IN_LOAD, silent=0.2))).nodes[0].ranks
    assert (told.view.processes, told.leaves, told.view.pid) == ((), (), 100)


def test_of_two_states_of_a_node_the_younger_counts() -> None:
    old, new = node(1, stamp=1), node(1, stamp=2)
    aged = replace(old, nodes=(replace(old.nodes[0], age_s=9.0),))
    assert [merge_digests(pair).nodes[0].stamp for pair in ((aged, new), (new, aged))] == [2, 2]


@given(st.lists(st.sampled_from([node(n) for n in range(4)]), min_size=3, max_size=6))
def test_joining_does_not_depend_on_who_is_joined_first(digests: list[NodeDigest]) -> None:
    first, *rest = digests
    together = merge_digests(digests)
    assert merge_digests([first, merge_digests(rest)]) == together
    assert merge_digests([merge_digests(digests[:2]), *digests[2:]]) == together
