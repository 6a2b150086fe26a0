"""What the silence of a node comes from, as far as connections and the other ranks show."""

from __future__ import annotations

from typing import Any

import pytest
from cases import IN_BARRIER, NOW_NS, SECOND, job, rank

from lightning_hangcheck.model.evidence import AddressReach
from lightning_hangcheck.nodes.encoding import pack, read_word
from lightning_hangcheck.nodes.peers import Heard
from lightning_hangcheck.nodes.word import word_of
from lightning_hangcheck.watch.other_nodes.joining import (
    addresses_to_ask,
    silence_gap,
    silent_node,
)

ADDRESS = "10.0.0.2"


def heard(node: int, *addresses: str, ago_s: float = 20.0) -> Heard:
    case = job(rank(2, IN_BARRIER), rank(3, IN_BARRIER))
    word, _ = read_word(pack(word_of(case, node, 1, addresses=addresses)))
    return Heard(word, NOW_NS - int(ago_s * SECOND))


@pytest.mark.parametrize(
    ("reaches", "others_silent_s", "reach"),
    [
        ([AddressReach(ADDRESS, 0.1)], 20.0, "answers"),
        ([AddressReach(ADDRESS, 0.1, 1, 19.0)], 20.0, "answers"),
        ([AddressReach(ADDRESS, 19.0, 1, 19.0)], 20.0, "unanswered"),
        ([AddressReach(ADDRESS, 19.0, 1, 0.4)], 20.0, "unknown"),
        ([AddressReach(ADDRESS, 19.0)], 20.0, "unknown"),
        ([], 20.0, "unknown"),
        ([], 0.1, "goes_on"),
    ],
)
def test_what_shows_of_a_silent_node(
    reaches: list[AddressReach], others_silent_s: float, reach: Any
) -> None:
    others = [rank(0, IN_BARRIER, silent=others_silent_s)]
    found = silent_node(heard(1, ADDRESS), 20.0, reaches, others)
    assert (found.number, found.ranks, found.silent_s) == (1, "2-3", 20.0)
    assert found.reach == reach
    assert silence_gap(found).what == "node 1 (ranks 2-3)"


def test_an_address_that_several_nodes_have_tells_of_none() -> None:
    """Every host of containers has a bridge of the same address."""
    bridge = "172.17.0.1"
    nodes = {1: heard(1, ADDRESS, bridge), 2: heard(2, "10.0.0.3", bridge, ago_s=1.0)}
    assert addresses_to_ask(nodes, ["10.0.0.1", bridge], [1]) == {1: (ADDRESS,)}
