"""Whose words a node takes: each node is heard, whichever others are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hangcheck.nodes.judging.tree import FAN_IN, below, is_below, taken_by

NNODES = 1_200


def told_to(node: int, silent: set[int], *, judges: bool = False) -> list[int]:
    """Nodes of which a node hears, directly or by way of those below it."""
    found = []
    for one in taken_by(node, NNODES, lambda other: other in silent, judges=judges):
        if one not in silent:
            found += [one, *told_to(one, silent)]
    return found


def test_every_node_is_below_the_first_one_by_one_way_only() -> None:
    nnodes = 3_000
    under = [child for node in range(nnodes) for child in below(node, nnodes)]
    assert sorted(under) == list(range(1, nnodes))
    assert max(len(below(node, nnodes)) for node in range(nnodes)) == FAN_IN
    assert is_below(FAN_IN + 1, 1, nnodes)
    assert not is_below(FAN_IN + 1, 2, nnodes)
    assert not is_below(nnodes, 1, nnodes)


@pytest.mark.parametrize("silent", [{1}, {0}, {0, 1}, set(range(40)), {5, 32, 200}])
@given(more=st.sets(st.integers(0, NNODES - 1), max_size=60))
def test_the_lowest_that_is_heard_hears_all_others_once(silent: set[int], more: set[int]) -> None:
    gone = silent | more
    judge = min(set(range(NNODES)) - gone)
    told = told_to(judge, gone, judges=True)
    assert sorted(told) == sorted(set(range(NNODES)) - gone - {judge})


def test_in_calm_nobody_takes_the_words_of_more_nodes_than_are_below_it() -> None:
    for node in (0, 1, 7, 40):
        assert list(taken_by(node, NNODES, lambda _: False, judges=not node)) == list(
            below(node, NNODES)
        )
