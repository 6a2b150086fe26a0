"""Nodes that cannot be of one job as they tell it, and what is said of them."""

from __future__ import annotations

import pytest
from cases import IN_BARRIER, job, rank
from msgspec.structs import replace

from lightning_hangcheck.judge.rank_set import rank_set
from lightning_hangcheck.nodes.peers import Heard
from lightning_hangcheck.nodes.word import VERSION, RoundMark, Word
from lightning_hangcheck.version import __version__
from lightning_hangcheck.watch.other_nodes.among_nodes import contradictions, same_number

FACTS = {"world_size": 4, "local_world_size": 2, "nnodes": 2}
HERE = job(rank(0, IN_BARRIER), rank(1, IN_BARRIER), **FACTS)
VERSIONS = __version__, "", "9.0", "9.0", "9.1"
WORD = Word(version=VERSION, node=1, stamp=1, world_size=4, local_world_size=2)
UNMARKED = RoundMark()


def said(
    *ranks: int, here: RoundMark = UNMARKED, there: RoundMark = UNMARKED, **changes: object
) -> list[str]:
    heard = Heard(replace(WORD, ranks=rank_set(ranks), mark=there, **changes), 0)
    return list(contradictions(HERE, here, [heard], 0))


def test_nodes_of_one_job_are_no_news() -> None:
    assert said(2, 3) == []


def test_another_world_size_is_said_with_what_to_mend() -> None:
    (sentence,) = said(2, 3, world_size=8)
    assert sentence == (
        "node 1 says that the job has 8 ranks, node 0 that it has 4: start all nodes with the same "
        "--nnodes and --nproc-per-node (or WORLD_SIZE)"
    )


def test_ranks_of_two_nodes_are_said() -> None:
    (sentence,) = said(1, 2)
    assert sentence == (
        "rank 1 is on node 1 and on node 0: give each node another --node-rank (or NODE_RANK)"
    )


def test_another_version_that_can_be_read_is_said_once_for_all_nodes_that_have_it() -> None:
    words = [replace(WORD, node=node, software=one) for node, one in enumerate(VERSIONS)]
    sentences = list(contradictions(HERE, UNMARKED, [Heard(one, 0) for one in words], 0))
    assert sentences == [
        f"nodes 2-3 have lightning-hangcheck 9.0, node 0 has {__version__}: they understand "
        "each other; install the same on all nodes before the next run",
        f"node 4 has lightning-hangcheck 9.1, node 0 has {__version__}: they understand "
        "each other; install the same on all nodes before the next run",
    ]


@pytest.mark.parametrize(
    ("addresses", "where"), [((), ""), (("10.0.0.5", "10.0.0.6"), " at 10.0.0.5")]
)
def test_another_node_of_the_same_number_is_said(addresses: tuple[str, ...], where: str) -> None:
    assert same_number(1, addresses) == (
        f"another node{where} says that it is node 1, too, and neither is heard as it should be: "
        "give each node another --node-rank (or NODE_RANK)"
    )


@pytest.mark.parametrize(
    "changes",
    [{"round": 1}, {"local_world_size": None}, {"world_size": 0}],
    ids=["another round", "ranks that no launcher numbered", "a size that is not known yet"],
)
def test_what_may_be_right_is_left_alone(changes: dict[str, object]) -> None:
    assert said(*((0, 1) if "world_size" not in changes else (2, 3)), **changes) == []


def test_ranks_of_one_round_that_torchrun_sends_to_two_stores_are_said() -> None:
    there = RoundMark(began_s=6.0, store_port=29_600)
    (sentence,) = said(2, 3, here=RoundMark(6.0, 29_500), there=there)
    assert sentence.startswith(
        "the ranks of node 1 look for their store at port 29600 of MASTER_ADDR, those of node 0 at "
        "port 29500: torchrun handed out an address of an earlier round; export "
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    )


@pytest.mark.parametrize(
    "there",
    [RoundMark(6.0, 29_500), RoundMark(2.0, 29_600), UNMARKED],
    ids=["the same store", "just started", "no torchrun"],
)
def test_ranks_that_may_meet_are_no_news(there: RoundMark) -> None:
    assert said(2, 3, here=RoundMark(6.0, 29_500), there=there) == []
