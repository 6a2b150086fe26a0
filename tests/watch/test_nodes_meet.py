"""Where nodes meet, and what they say of each other that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from cases import IN_BARRIER, NOW_NS, SECOND, job, rank
from msgspec.structs import replace

from lightning_hangcheck.identity import NodePlace
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.evidence import AddressReach
from lightning_hangcheck.nodes.encoding import pack, read_message
from lightning_hangcheck.nodes.meeting_place import CourierPlace, FolderPlace, SealedPlace
from lightning_hangcheck.nodes.message import VERSION, Message, RoundMark, class_of, message_of
from lightning_hangcheck.nodes.who_judges import PeerState
from lightning_hangcheck.settings import SHARED_BY_NODES, Settings
from lightning_hangcheck.version import __version__
from lightning_hangcheck.watch.join_nodes import addresses_to_ask, silence_gap, silent_node
from lightning_hangcheck.watch.other_nodes import contradictions, meeting_of

FACTS = {"world_size": 4, "local_world_size": 2, "nnodes": 2}

HERE = job(rank(0, IN_BARRIER), rank(1, IN_BARRIER), **FACTS)

WORD = Message(version=VERSION, node=1, stamp=1, world_size=4, local_world_size=2)

UNMARKED = RoundMark()


def said(
    *ranks: int, here: RoundMark = UNMARKED, there: RoundMark = UNMARKED, **changes: object
) -> list[str]:
    lines = tuple(class_of(RankView(rank=one), (), 0) for one in ranks)
    heard = PeerState(replace(WORD, lines=lines, mark=there, **changes), 0)
    return list(contradictions(HERE, here, [heard], 0))


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
    words = [replace(WORD, node=node, software="9.0") for node in (2, 3)]
    sentences = list(contradictions(HERE, UNMARKED, [PeerState(one, 0) for one in words], 0))
    assert sentences == [
        f"nodes 2-3 have lightning-hangcheck 9.0, node 0 has {__version__}: they understand "
        "each other; install the same on all nodes before the next run"
    ]


def test_ranks_of_one_round_that_torchrun_sends_to_two_stores_are_said() -> None:
    there = RoundMark(began_s=6.0, store_port=29_600)
    (sentence,) = said(2, 3, here=RoundMark(6.0, 29_500), there=there)
    assert sentence.startswith(
        "the ranks of node 1 look for their store at port 29600 of MASTER_ADDR, those of node 0 at "
        "port 29500: torchrun handed out an address of an earlier round; export "
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    )


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        ((2, 3), {}),
        ((0, 1), {"round": 1}),
        ((0, 1), {"local_world_size": None}),
        ((2, 3), {"world_size": 0}),
        ((2, 3), {"there": RoundMark(6.0, 29_500)}),
        ((2, 3), {"there": RoundMark(2.0, 29_600)}),
    ],
    ids=[
        "nodes of one job",
        "another round",
        "ranks that no launcher numbered",
        "a size that is not known yet",
        "the same store",
        "just started",
    ],
)
def test_what_may_be_right_is_left_alone(ranks: tuple[int, ...], changes: dict[str, Any]) -> None:
    assert said(*ranks, here=RoundMark(6.0, 29_500), **changes) == []


ADDRESS = "10.0.0.2"


def heard(node: int, *addresses: str, ago_s: float = 20.0) -> PeerState:
    case = job(rank(2, IN_BARRIER), rank(3, IN_BARRIER))
    message = read_message(pack(message_of(case, node, 1, addresses=addresses)))
    return PeerState(message, NOW_NS - int(ago_s * SECOND))


@pytest.mark.parametrize(
    ("reaches", "others_silent_s", "reach"),
    [
        ([AddressReach(ADDRESS, 0.1)], 20.0, "answers"),
        ([AddressReach(ADDRESS, 19.0, 1, 19.0)], 20.0, "unanswered"),
        ([AddressReach(ADDRESS, 19.0, 1, 0.4)], 20.0, "unknown"),
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


SLURM = NodePlace(number=1, nnodes=4, job="slurm-7-0", first="node0")

TORCHRUN = NodePlace(number=1, nnodes=2, host="node0", port=29500, first="node0")

OFFERED = Settings(nodes_port=29511)

FOLDERS = {"nodes_dir": "/shared/meet", "run_dir": "/shared/run"}


@pytest.fixture(autouse=True)
def known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARED_BY_NODES, "0123456789abcdef")


IN_RUN_DIR = Settings(nodes_port=29511, run_dir="/shared/run")


@pytest.mark.parametrize(
    ("place", "asked", "kinds", "told"),
    [
        (SLURM, Settings(nodes_port=29511, **FOLDERS), [FolderPlace], "folder /shared/meet/"),
        (TORCHRUN, OFFERED, [CourierPlace], "torchrun's store at node0:29500"),
        (SLURM, OFFERED, [SealedPlace], "the first sidecar's store at node0:29511: no store that "),
        (SLURM, IN_RUN_DIR, [SealedPlace, FolderPlace], "the first sidecar's store at node0:29511"),
        (NodePlace(number=0, nnodes=1, first="node0"), OFFERED, [], ""),
    ],
    ids=["a folder", "a launcher's store", "a port", "a port, then the run folder", "one node"],
)
def test_where_the_nodes_meet(place: NodePlace, asked: Settings, kinds: Any, told: str) -> None:
    """A folder that was named for it goes before all; in a run folder they go on if it is lost."""
    found = meeting_of(place, asked)
    assert [type(one) for one in found.places] == kinds
    assert found.description.startswith(told)
    assert found.description.endswith(f"; this is node 1 of {place.nnodes}" if kinds else "")


@pytest.mark.parametrize("secret", ["", "short"])
def test_nothing_is_served_without_a_secret(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARED_BY_NODES, secret)
    without = meeting_of(SLURM, OFFERED)
    assert (without.places, without.description[:9]) == ((), "nowhere: ")
    assert "needs a secret" in without.description
    assert f"export {SHARED_BY_NODES}=" in without.way_out
    in_folder = meeting_of(SLURM, IN_RUN_DIR)
    assert [type(one) for one in in_folder.places] == [FolderPlace]
