"""Cases of several nodes become one; contradictions are told."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, IN_LOAD, NOW_NS, SECOND, gone, job, rank, with_kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import NodeCase, merge_cases
from lightning_hangcheck.model.case import Case, RankView, SilentNode
from lightning_hangcheck.model.evidence import Connection, Holder, WaitTarget
from lightning_hangcheck.model.verdict import Edge
from lightning_hangcheck.text.moments import read_utc, utc

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Reach
    from lightning_hangcheck.model.verdict import Verdict


def node(name: str, *views: RankView, at: str = "2026-11-20T10:24:16.500Z", **run: int) -> NodeCase:
    """What was seen on one of two nodes with two ranks each."""
    here = tuple(replace(view, host=name) for view in views)
    facts = {"world_size": 4, "local_world_size": 2, "nnodes": 2, **run}
    return NodeCase(name, job(*here, taken_at=at, **facts), met=True)


def merged(*nodes: NodeCase) -> Case:
    return merge_cases(nodes, "merged")


@pytest.mark.parametrize("at", ["2026-11-20T10:24:16.500Z", "2026-11-20T10:23:16.500Z"])
def test_a_culprit_is_found_on_the_other_node(at: str) -> None:
    """What a node saved a minute earlier tells where its ranks stood then."""
    waiting = node("node0", rank(0, IN_BARRIER), rank(1, IN_BARRIER), at=at)
    stuck = node("node1", rank(2, IN_BARRIER), rank(3, IN_LOAD))
    assert judge(waiting.case).culprits == ()
    case = merged(waiting, stuck)
    verdict = judge(case)
    assert [view.rank for view in case.ranks] == [0, 1, 2, 3]
    assert (verdict.verdict, verdict.culprits, verdict.run_id) == ("hang", (3,), "merged")
    assert verdict.gaps == ()


def test_a_rank_that_no_node_has_is_missing_where_every_node_says_how_many_it_has() -> None:
    case = merged(
        node("node0", rank(0, IN_BARRIER), rank(1, IN_BARRIER)), node("node1", rank(2, IN_BARRIER))
    )
    assert [(view.rank, view.pid) for view in case.ranks][3] == (3, None)


def alone(name: str, number: int, reach: Reach = "unanswered") -> NodeCase:
    """What a node with one rank of three tells, which does not hear node 0 any more."""
    case = node(name, rank(number, IN_BARRIER, silent=400.0), world_size=3, nnodes=3).case
    lost = replace(rank(0), pid=None, unheard_for_s=400.0, silent_for_s=400.0)
    silent = SilentNode(number=0, ranks="0", silent_s=400.0, reach=reach, unanswered_s=399.0)
    run = replace(case.run, local_world_size=2, silent_nodes=(silent,))
    return NodeCase(name, replace(case, run=run, ranks=(lost, *case.ranks)), met=True)


def test_nodes_that_judged_alone_name_the_one_that_none_of_them_hears() -> None:
    case = merged(alone("node1", 1), alone("node2", 2, reach="unknown"))
    verdict = judge(case)
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0,), "network_wait")
    assert verdict.victims == (1, 2)
    assert "node 0 (rank 0) has not been heard for" in verdict.summary
    assert case.run.local_world_size == 3, "the rank that both tell of counts once"


@pytest.mark.parametrize(
    ("at", "reach", "seen"),
    [
        ("2026-11-20T10:10:00.500Z", "unanswered", False),
        ("2026-11-20T10:24:10.500Z", "unanswered", True),
        ("2026-11-20T10:10:00.500Z", "unknown", True),
    ],
    ids=["before its host was lost", "it lived on, cut off", "only its sidecar may have ended"],
)
def test_what_a_silent_node_saved_itself_counts_unless_its_host_was_lost_since(
    at: str, reach: Reach, seen: bool
) -> None:
    own = node("node0", rank(0, IN_BARRIER), at=at, world_size=3, nnodes=3)
    case = merged(alone("node1", 1, reach), alone("node2", 2, reach), own)
    assert (case.ranks[0].unheard_for_s == 0.0) == seen
    assert bool(case.run.silent_nodes) != seen


def test_ranks_of_a_node_that_was_left_out_are_a_gap() -> None:
    case = merged(
        node("node0", rank(0, IN_BARRIER), rank(1, IN_BARRIER), world_size=6, nnodes=3),
        node("node1", rank(2, IN_BARRIER), rank(3, IN_BARRIER), world_size=6, nnodes=3),
    )
    assert [gap.what for gap in case.gaps] == ["ranks 4-5"]


def test_machines_of_one_name_and_equal_process_ids_are_told_apart() -> None:
    """Containers: rank 0 is pid 7 of one, rank 2 is pid 7 of the other, and both are localhost."""
    seen = [
        node("localhost", replace(rank(number, stack), pid=7), world_size=2, local_world_size=1)
        for number, stack in enumerate((IN_BARRIER, IN_LOAD))
    ]
    apart = [
        NodeCase(f"node {number}", replace(one.case, run=replace(one.case.run, machine=machine)))
        for number, (one, machine) in enumerate(zip(seen, "ab", strict=True))
    ]
    case = merged(*apart)
    assert [view.host for view in case.ranks] == ["localhost(node-0)", "localhost(node-1)"]
    assert case.run.local_world_size == 2
    verdict = judge(case)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1,), (0,))


def test_two_processes_that_claim_one_rank_are_told() -> None:
    case = merged(
        node("node0", rank(0, IN_BARRIER), rank(1, IN_LOAD)),
        node("node1", rank(1, IN_BARRIER), at="2026-11-20T10:24:17.000Z"),
    )
    (gap,) = [gap for gap in case.gaps if gap.rank == 1]
    assert "on node0" in gap.why
    assert "in node1, which counts" in gap.why
    assert next(view for view in case.ranks if view.rank == 1).host == "node1"


def test_nodes_of_different_jobs_are_told() -> None:
    other = node("node1", rank(2, IN_BARRIER), rank(3, IN_BARRIER))
    stranger = replace(other.case, run=replace(other.case.run, command="python other.py"))
    case = merged(
        node("node0", rank(0, IN_BARRIER), rank(1, IN_BARRIER)), NodeCase("node1", stranger)
    )
    assert [gap.what for gap in case.gaps] == ["command of node1"]


def test_processes_with_one_number_on_two_nodes_are_told_apart() -> None:
    """Containers number their processes alike: what holds node0's lock is none of node1's ranks."""
    lock = WaitTarget(call="flock", kind="lock", name="/home/a.lock", holders=(Holder(pid=102),))
    waiting = node("node0", rank(0, IN_LOAD, waits_for=(lock,)), rank(1, IN_BARRIER))
    there = node("node1", rank(2, IN_BARRIER), rank(3, IN_LOAD, waits_for=(lock,)))
    edges = judge(merged(waiting, there)).wait_for
    assert Edge("file:/home/a.lock@node0", "pid:102@node0", "held by") in edges
    assert Edge("file:/home/a.lock@node1", "rank:2", "held by") in edges


def test_a_file_on_shared_storage_is_one_file_for_all_nodes() -> None:
    lock = WaitTarget(call="flock", kind="lock", name="/nfs/a.lock", shared_storage=True)
    held = replace(lock, holders=(Holder(pid=7, program="rsync"),))
    waiting = node("node0", rank(0, IN_LOAD, waits_for=(lock,)), rank(1, IN_BARRIER))
    there = node("node1", rank(2, IN_BARRIER), rank(3, IN_LOAD, waits_for=(held,)))
    edges = judge(merged(waiting, there)).wait_for
    assert {edge.target for edge in edges if edge.source == "file:/nfs/a.lock"} == {"pid:7@node1"}
    assert Edge("rank:0", "file:/nfs/a.lock", "for the lock") in edges


STAND = (rank(0, IN_BARRIER), rank(1, IN_BARRIER), rank(2, IN_BARRIER), rank(3, IN_LOAD))
ENDED = (gone(0, 1, words="ValueError: 0"), gone(1, 0), gone(2, -11), gone(3, -15))
LOST_PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer"
BROKEN = (gone(0, 0), gone(1, 0), gone(2, 1, words=LOST_PEER), gone(3, 1, words=LOST_PEER))


@pytest.mark.parametrize("views", [STAND, ENDED, BROKEN], ids=["stand", "ended", "broken"])
@settings(deadline=None, max_examples=25)
@given(
    hours=st.integers(-72, 72), machine=st.booleans(), first=st.booleans(), seen=st.integers(-9, -1)
)
def test_a_wall_clock_that_is_hours_off_changes_nothing_that_is_judged(
    views: tuple[RankView, ...], hours: int, machine: bool, first: bool, seen: int
) -> None:
    """Whether the nodes are containers of one machine, or nothing is known of their clocks."""

    def verdict(shifted_h: int) -> Verdict:
        nodes = []
        for number in range(2):
            hour = shifted_h * 3600 if (number == 0) == first else 0
            at = utc(read_utc("2026-11-20T10:24:16.500Z") + timedelta(seconds=hour))
            here = [_seen(one, number * seen) for one in views[2 * number : 2 * number + 2]]
            told = node(f"node{number}", *here, at=at).case
            run = replace(told.run, machine=f"3f2a9c1e-{number}" if machine else "")
            ended = views is not STAND
            told = replace(told, run=run, ended=ended)
            nodes.append(NodeCase(f"node{number}", told))
        return judge(merged(*nodes))

    right, off = verdict(0), verdict(hours)
    assert (off.verdict, off.culprits, off.cause) == (right.verdict, right.culprits, right.cause)
    assert (off.victims, off.gaps) == (right.victims, right.gaps)
    if views is STAND:
        assert right.culprits == (3,)


def _seen(view: RankView, seconds: int) -> RankView:
    if view.process_exit is None:
        return view
    seen = replace(view.process_exit, seen_ns=NOW_NS + seconds * SECOND)
    return replace(view, process_exit=seen)


def unknown(*views: RankView) -> list[NodeCase]:
    """Two nodes that never met, each with two ranks."""
    pairs = views[:2], views[2:]
    nodes = [node(f"node{number}", *pair) for number, pair in enumerate(pairs)]
    return [NodeCase(one.source, replace(one.case, ended=True)) for one in nodes]


def test_who_failed_first_on_nodes_that_never_met_is_open_and_each_is_named() -> None:
    case = merged(*unknown(*ENDED))
    verdict = judge(case)
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("crashed", (0, 2), "process_dead")
    assert "rank 0 failed: it exited with code 1: ValueError: 0" in verdict.summary
    assert "which of them failed first is unknown" in verdict.summary
    (gap,) = case.gaps
    assert gap.what == "order of what node0 and node1 saw"
    assert gap.why == "their clocks are not known against each other"


def test_one_that_left_on_another_node_is_what_was_lost_whatever_the_clocks_say() -> None:
    verdict = judge(merged(*unknown(*BROKEN)))
    assert (verdict.verdict, verdict.culprits) == ("crashed", (0, 1))


def test_a_rank_that_waits_at_a_connection_waits_for_the_rank_at_its_other_end() -> None:
    here, there = "10.0.0.1:4001", "10.0.0.2:29500"
    target = WaitTarget(call="recvfrom", kind="socket", name=there, own_end=here)
    answers = with_kernel(rank(1, IN_BARRIER), connections=(Connection(there, here),))
    facts = {"world_size": 2, "local_world_size": 1}
    asking = node("node0", rank(0, IN_LOAD, waits_for=(target,)), **facts)
    verdict = judge(merged(asking, node("node1", answers, **facts)))
    assert Edge("rank:0", "rank:1", "in recvfrom") in verdict.wait_for
