"""Where nodes meet, what they say of each other, and what the first makes of the others."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_BARRIER, IN_LOAD, NOW_NS, SECOND, gone, job, rank
from msgspec.structs import replace
from processes import until

from lightning_hangcheck.identity import NodePlace
from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import ELSEWHERE, rebased
from lightning_hangcheck.model.beat import Beat, CheckpointMark
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.evidence import AddressReach, Gap
from lightning_hangcheck.model.run import Round, RoundStart
from lightning_hangcheck.nodes.encoding import pack, read_message
from lightning_hangcheck.nodes.meeting_place import CourierPlace, FolderPlace, SealedPlace
from lightning_hangcheck.nodes.message import (
    VERSION,
    Message,
    RoundMark,
    class_of,
    left_round,
    message_of,
)
from lightning_hangcheck.nodes.who_judges import SILENT_AFTER_S, PeerState
from lightning_hangcheck.settings import SHARED_BY_NODES, Settings
from lightning_hangcheck.version import __version__
from lightning_hangcheck.watch.join_nodes import addresses_to_ask, silence_gap, silent_node
from lightning_hangcheck.watch.other_nodes import OtherNodes, contradictions, meeting_of
from lightning_hangcheck.watch.round_ends import EndedRounds, LeftHere, ended_on_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict

GAP = Gap("ranks 2-3", None, ELSEWHERE, "other_nodes")
MARK = Beat(pid=102, step=120, checkpoint=CheckpointMark(5, "Model created", ""))
FACTS = {"world_size": 4, "local_world_size": 2, "nnodes": 2}
HERE = job(rank(0, IN_BARRIER), rank(1, IN_BARRIER), **FACTS, gaps=(GAP,))
WAITS = job(rank(2, IN_BARRIER), rank(3, IN_BARRIER), **FACTS)
THERE = job(rank(2, IN_BARRIER, beat=MARK), rank(3, IN_LOAD), **FACTS)


def now(case: Case, later_s: float = 0.0) -> Case:
    """The case as if taken at this moment, or so much later."""
    return rebased(case, time.monotonic_ns() + int(later_s * SECOND) - NOW_NS)


class Clock:
    """Goes on as the machine's does, until it is stopped at a moment."""

    def __init__(self) -> None:
        self.stopped_ns: int | None = None

    def __call__(self) -> int:
        return time.monotonic_ns() if self.stopped_ns is None else self.stopped_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def nodes(tmp_path: Path, clock: Clock) -> Iterator[list[OtherNodes]]:
    """Two nodes that meet in a folder."""
    places = [NodePlace(number=n, nnodes=2) for n in range(2)]
    meeting = FolderPlace(tmp_path / "meet")
    both = [OtherNodes(one, [meeting], clock) for one in places]
    with closing(both[0].peers), closing(both[1].peers):
        yield both


def tell_until(nodes: list[OtherNodes], done: Callable[[], object]) -> None:
    def told() -> object:
        for node, case in zip(nodes, (HERE, THERE), strict=True):
            node.tell(now(case), None)
        return done()

    until(told, "the nodes to hear each other")


def pass_by(
    clock: Clock, node: OtherNodes, case: Case, seconds: float, step_s: float = 1.0
) -> Case:
    """Let time go by in which this node listens, a second a turn, and return its case then."""
    clock.stopped_ns = clock.stopped_ns or clock()
    for _ in range(int(seconds / step_s)):
        clock.stopped_ns += int(step_s * SECOND)
        case = rebased(case, clock.stopped_ns - case.taken_ns)
        node.tell(case, None)
        until(lambda: node.peers.listened_ns >= clock(), "the node to listen")
    node.tell(case, None)
    return case


def hears(nodes: list[OtherNodes]) -> bool:
    return len(nodes[0].join(now(HERE)).ranks) == 4


def test_the_culprit_on_the_other_node_is_named(nodes: list[OtherNodes]) -> None:
    assert judge(HERE).culprits == ()
    tell_until(nodes, lambda: hears(nodes))
    case = nodes[0].join(now(HERE))
    verdict = judge(case)
    assert (verdict.verdict, verdict.culprits, verdict.nnodes) == ("hang", (3,), 2)
    assert case.gaps == ()
    assert not nodes[0].follows
    tell_until(nodes, lambda: nodes[1].follows)
    assert nodes[1].join(THERE) == THERE, "another node than the first judges its own ranks alone"
    later = now(replace(HERE, run=replace(HERE.run, round=1)))
    assert [view.rank for view in nodes[0].join(later).ranks] == [0, 1], "of another round"


def test_the_judging_nodes_verdict_is_read_by_the_others(nodes: list[OtherNodes]) -> None:
    tell_until(nodes, lambda: hears(nodes) and nodes[1].follows)
    verdict = judge(nodes[0].join(now(HERE)))
    nodes[0].tell(now(HERE), verdict)
    until(lambda: nodes[1].news() == verdict, "the verdict to be read")


def test_a_node_that_fell_silent_is_a_fact_with_what_was_known_of_it(
    nodes: list[OtherNodes], clock: Clock
) -> None:
    tell_until(nodes, lambda: hears(nodes))
    nodes[1].peers.close()
    case = nodes[0].join(pass_by(clock, nodes[0], now(HERE), SILENT_AFTER_S + 25.0))
    (gap,) = case.gaps
    assert [view.unheard_for_s > 0 for view in case.ranks] == [False, False, True, True]
    assert [node.ranks for node in case.run.silent_nodes] == ["2-3"]
    assert gap.what == "node 1 (ranks 2-3)"
    assert gap.why.startswith("has not been heard for ")
    assert gap.why.endswith("last known there: checkpoint 5 (Model created), step 120")


def test_where_the_first_node_falls_silent_the_next_one_judges_and_knows_who_it_was(
    nodes: list[OtherNodes], clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its ranks are those that theirs wait for."""
    tell_until(nodes, lambda: nodes[1].follows and hears(nodes))
    assert [view.rank for view in nodes[1].join(now(WAITS)).ranks] == [2, 3]
    nodes[0].peers.close()
    early = pass_by(clock, nodes[1], now(WAITS), SILENT_AFTER_S - 2.0)
    assert nodes[1].follows
    later = pass_by(clock, nodes[1], early, 10.0)  # its last message may be read a turn later
    assert nodes[1].judges
    case = nodes[1].join(later)
    assert [view.rank for view in case.ranks if view.unheard_for_s] == [0, 1]
    assert [node.ranks for node in case.run.silent_nodes] == ["0-1"]
    nodes[1].notice_silence(later)
    said = capfd.readouterr().err
    assert "node 0 (ranks 0-1) has not been heard for" in said
    assert "until it is heard again, this node judges for all that are heard" in said


def test_a_node_that_could_not_listen_calls_nobody_silent(
    nodes: list[OtherNodes], clock: Clock
) -> None:
    """A sidecar that was starved, or stopped, for a minute knows nothing of the others' silence."""
    tell_until(nodes, lambda: hears(nodes))
    nodes[1].peers.close()
    late = pass_by(clock, nodes[0], now(HERE), 60.0, step_s=60.0)
    late = pass_by(clock, nodes[0], late, SILENT_AFTER_S - 1.0)
    assert nodes[0].join(late).run.silent_nodes == ()
    assert nodes[0].join(pass_by(clock, nodes[0], late, 2.0)).run.silent_nodes


def test_a_node_of_which_nothing_was_ever_heard_is_named(
    nodes: list[OtherNodes], clock: Clock
) -> None:
    nodes[1].peers.close()
    case = pass_by(clock, nodes[0], now(HERE), 1.0)
    early = nodes[0].join(case)
    late = nodes[0].join(pass_by(clock, nodes[0], case, SILENT_AFTER_S + 1.0))
    assert (early.run.absent_nodes, early.gaps) == ((), (GAP,))
    assert late.run.absent_nodes == (1,)
    assert [gap.what for gap in late.gaps] == ["node 1"]


OF_TWO: dict[str, Any] = {"world_size": 2, "local_world_size": 1, "nnodes": 2}
NEXT = RoundStart(launcher="torchrun", number=1, most=3)
PLACE = NodePlace(number=0, nnodes=2)
WORDS = "ValueError: bad sample in fail (train.py:38)"


def seen(view: RankView, ago_s: float) -> RankView:
    at_ns = NOW_NS - int(ago_s * SECOND)
    return replace(view, process_exit=replace(view.process_exit, seen_ns=at_ns))


ENDED_BY_AGENT = job(seen(gone(0, -15), 1.0), ended=True, next_start=NEXT, **OF_TWO)
FAILED = job(seen(gone(1, 1, words=WORDS), 2.0), ended=True, next_start=NEXT, **OF_TWO)
GOES_ON = job(rank(1, IN_BARRIER, silent=0.1), round=1, **OF_TWO)


def heard(present: Case, left: Case | None = None, ago_s: float = 0.5) -> dict[int, PeerState]:
    told = left_round(left) if left is not None else None
    message = read_message(pack(message_of(present, 1, 1, left=told)))
    return {1: PeerState(message, NOW_NS - int(ago_s * SECOND))}


@pytest.mark.parametrize("nodes", [heard(GOES_ON, FAILED), heard(FAILED)], ids=["before", "now"])
def test_the_rank_of_another_node_that_failed_is_the_end_of_the_round(
    nodes: dict[int, PeerState],
) -> None:
    """Whether that node is in the round still, or has begun the next one."""
    alone = judge(ENDED_BY_AGENT)
    assert alone.culprits == ()
    joined = ended_on_all(ENDED_BY_AGENT, nodes, PLACE, over=False)
    verdict = judge(joined)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("crashed", (1,), (0,))
    assert f"rank 1 failed first: it exited with code 1: {WORDS}" in verdict.summary
    assert verdict.summary.startswith("round 0 ended: ")


def test_a_node_that_has_not_told_it_is_waited_for_and_then_left_out() -> None:
    for nodes in ({}, heard(GOES_ON), heard(replace(GOES_ON, run=ENDED_BY_AGENT.run))):
        assert ended_on_all(ENDED_BY_AGENT, nodes, PLACE, over=False) is None
    assert ended_on_all(ENDED_BY_AGENT, heard(GOES_ON), PLACE, over=True) == ENDED_BY_AGENT


def test_both_nodes_end_the_chapter_in_the_same_words(tmp_path: Path) -> None:
    """The first node's rank was only ended by its agent, as its numbers and words show."""
    meeting = FolderPlace(tmp_path / "meet")
    places = [NodePlace(number=n, nnodes=2) for n in range(2)]
    nodes = [OtherNodes(one, [meeting]) for one in places]
    left = [ENDED_BY_AGENT, FAILED]
    present = [job(rank(0, IN_BARRIER, silent=0.1), round=1, **OF_TWO), GOES_ON]
    ended = [EndedRounds(), EndedRounds()]
    settled: dict[int, tuple[Verdict, Round]] = {}

    def now(case: Case) -> Case:
        return rebased(case, time.monotonic_ns() - NOW_NS)

    def both_have() -> bool:
        for number, node in enumerate(nodes):
            node.tell(now(present[number]), None)
            for _, verdict, remembered in ended[number].settled(time.monotonic_ns()):
                settled[number] = verdict, remembered
        return len(settled) == 2

    with closing(nodes[0].peers), closing(nodes[1].peers):
        for number, node in enumerate(nodes):
            ended[number].meet(node)
            ended[number].leave(LeftHere(now(left[number]), f"start {number}", None))
        until(both_have, "both nodes to know how the round ended")
    (told, ours), (told_there, theirs) = settled[0], settled[1]
    assert told == told_there
    assert ours.culprits == (1,)
    assert ours.summary == theirs.summary
    assert WORDS in ours.summary
    assert {place.rank for place in ours.ranks} == {0, 1}
    assert (ours.started_at, theirs.started_at) == ("start 0", "start 1")


# How the job ended, on all nodes
LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4711"
OF_THREE: dict[str, Any] = {"world_size": 3, "local_world_size": 1, "nnodes": 3}


def of_node(node: int, view: RankView, ago_s: float) -> PeerState:
    message = read_message(pack(message_of(job(view, **OF_THREE), node, 1)))
    return PeerState(message, NOW_NS - int(ago_s * SECOND))


LEFT_HERE: Case = job(seen(gone(0, 1, words=LOST), 2.0), ended=True, **OF_THREE)


@pytest.mark.parametrize(
    ("others", "culprits", "said"),
    [
        ([seen(gone(1, -9), 0.1), seen(gone(2, 1, words=LOST), 0.1)], (1,), "rank 1 "),
        ([None, seen(gone(2, 1, words=LOST), 0.1)], (1,), "rank 1 was lost with node 1"),
        ([None, None], (), ""),
    ],
    ids=["one was killed", "one told nothing more", "the place to meet went first"],
)
def test_who_ended_the_job_on_another_node_is_named(
    others: list[RankView | None], culprits: tuple[int, ...], said: str
) -> None:
    """A node that is None waited in a barrier when it was heard last, 4 s ago."""
    nodes = {
        number: of_node(number, rank(number, IN_BARRIER, silent=0.1), ago_s=4.0)
        if view is None
        else of_node(number, view, ago_s=1.0)
        for number, view in enumerate(others, start=1)
    }
    joined = ended_on_all(LEFT_HERE, nodes, NodePlace(number=0, nnodes=3))
    verdict = judge(replace(joined, exit_code=1))
    assert (verdict.verdict, verdict.culprits) == ("crashed", culprits)
    assert said in verdict.summary


# Where nodes meet, and what they say of each other that cannot be.


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


def heard_of(node: int, *addresses: str, ago_s: float = 20.0) -> PeerState:
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
    found = silent_node(heard_of(1, ADDRESS), 20.0, reaches, others)
    assert (found.number, found.ranks, found.silent_s) == (1, "2-3", 20.0)
    assert found.reach == reach
    assert silence_gap(found).what == "node 1 (ranks 2-3)"


def test_an_address_that_several_nodes_have_tells_of_none() -> None:
    """Every host of containers has a bridge of the same address."""
    bridge = "172.17.0.1"
    nodes = {1: heard_of(1, ADDRESS, bridge), 2: heard_of(2, "10.0.0.3", bridge, ago_s=1.0)}
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
