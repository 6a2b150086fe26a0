"""Cases of several nodes become one; contradictions are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, IN_LOAD, SECOND, job, rank
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.diagnosis.job_processes import job_processes
from lightning_hangcheck.gather.node_merge import NodeCase, merge_cases
from lightning_hangcheck.gather.node_view import rebased
from lightning_hangcheck.model.beat import Beat, OpenSection
from lightning_hangcheck.model.case import SilentNode
from lightning_hangcheck.model.evidence import Holder, WaitTarget
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView, Reach


def node(name: str, *views: RankView, at: str = "2026-11-20T10:24:16.500Z", **run: int) -> NodeCase:
    """What was seen on one of two nodes with two ranks each."""
    here = tuple(replace(view, host=name) for view in views)
    facts = {"world_size": 4, "local_world_size": 2, "nnodes": 2, **run}
    return NodeCase(name, job(*here, taken_at=at, **facts))


def merged(*nodes: NodeCase) -> Case:
    return merge_cases(nodes, "merged")


def test_a_culprit_is_found_on_the_other_node() -> None:
    waiting = node("node0", rank(0, IN_BARRIER), rank(1, IN_BARRIER))
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
    return NodeCase(name, replace(case, run=run, ranks=(lost, *case.ranks)))


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
    processes = job_processes(case.ranks)
    assert processes.node("localhost(node-0)", 7) == "rank:0"
    assert processes.node("localhost(node-1)", 7) == "rank:1"
    verdict = judge(case)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1,), (0,))


def test_tasks_of_one_machine_keep_its_name() -> None:
    tasks = [node("n1", rank(number, IN_BARRIER)) for number in (0, 1)]
    same = [
        NodeCase(f"node {number}", replace(one.case, run=replace(one.case.run, machine="a")))
        for number, one in enumerate(tasks)
    ]
    assert {view.host for view in merged(*same).ranks if view.pid} == {"n1"}


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


def test_clocks_of_nodes_are_joined_by_their_wall_clocks() -> None:
    """Monotonic clocks of two hosts have nothing in common; a later visit stays later."""
    late = node("node1", rank(2, IN_BARRIER), rank(3, IN_LOAD), at="2026-11-20T10:24:26.500Z")
    early = node("node0", rank(0, IN_BARRIER), rank(1, IN_BARRIER))
    shifted = NodeCase("node0", rebased(early.case, 5_000 * SECOND))
    case = merged(shifted, late)
    newest = {view.rank: view.processes[0].samples[-1].taken_ns for view in case.ranks}
    assert newest[3] == case.taken_ns
    assert newest[0] == case.taken_ns - 10 * SECOND


def test_every_monotonic_time_is_moved_and_an_absent_one_stays_absent() -> None:
    beat = Beat(pid=1, last_beat_ns=7, pulse_ns=0, sections=(OpenSection("save", 5),))
    moved = rebased(beat, 100)
    assert (moved.last_beat_ns, moved.pulse_ns, moved.sections[0].since_ns) == (107, 0, 105)


def test_a_fact_in_which_no_time_can_be_is_not_made_anew() -> None:
    """Most facts of a node are frames, and a node tells what it sees each second."""
    assert rebased(IN_LOAD[0], 100) is IN_LOAD[0]


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


def test_a_process_of_the_only_host_is_named_by_its_number_alone() -> None:
    lock = WaitTarget(call="flock", kind="lock", name="/home/a.lock", holders=(Holder(pid=7),))
    alone = merged(node("node0", rank(0, IN_LOAD, waits_for=(lock,)), rank(1, IN_BARRIER)))
    assert Edge("file:/home/a.lock", "pid:7", "held by") in judge(alone).wait_for


def test_one_node_merges_to_itself() -> None:
    alone = node("node0", rank(0, IN_BARRIER), rank(1, IN_LOAD), world_size=2, nnodes=1)
    verdict = judge(merged(alone))
    assert verdict.culprits == judge(alone.case).culprits == (1,)
