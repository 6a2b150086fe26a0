"""A round, or the job, ended as a rank of another node failed: each node says which."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_BARRIER, NOW_NS, SECOND, gone, job, rank
from msgspec.structs import replace
from processes import until

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import rebased
from lightning_hangcheck.model.run import NodePlace, Round, RoundStart
from lightning_hangcheck.nodes.encoding import BadWord, pack, read_word
from lightning_hangcheck.nodes.meeting_place import FolderPlace
from lightning_hangcheck.nodes.peers import Heard
from lightning_hangcheck.nodes.word import MOST_ENDS, left_round, word_of
from lightning_hangcheck.watch.other_nodes.among_nodes import AmongNodes
from lightning_hangcheck.watch.other_nodes.joining import (
    EndedRounds,
    LeftHere,
    first_failure_ns,
    have_said,
    join_end,
    join_round_end,
)

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.verdict import Verdict

FACTS: dict[str, Any] = {"world_size": 2, "local_world_size": 1, "nnodes": 2}
NEXT = RoundStart(launcher="torchrun", number=1, most=3)
PLACE = NodePlace(number=0, nnodes=2)
WORDS = "ValueError: bad sample in fail (train.py:38)"


def seen(view: RankView, ago_s: float) -> RankView:
    assert view.process_exit is not None
    at_ns = NOW_NS - int(ago_s * SECOND)
    return replace(view, process_exit=replace(view.process_exit, seen_ns=at_ns))


ENDED_BY_AGENT = job(seen(gone(0, -15), 1.0), ended=True, next_start=NEXT, **FACTS)
FAILED = job(seen(gone(1, 1, words=WORDS), 2.0), ended=True, next_start=NEXT, **FACTS)
GOES_ON = job(rank(1, IN_BARRIER, silent=0.1), round=1, **FACTS)


def heard(present: Case, left: Case | None = None, ago_s: float = 0.5) -> dict[int, Heard]:
    told = left_round(left) if left is not None else None
    word, _ = read_word(pack(word_of(present, 1, 1, left=told)))
    return {1: Heard(word, NOW_NS - int(ago_s * SECOND))}


@pytest.mark.parametrize("nodes", [heard(GOES_ON, FAILED), heard(FAILED)], ids=["before", "now"])
def test_the_rank_of_another_node_that_failed_is_the_end_of_the_round(
    nodes: dict[int, Heard],
) -> None:
    """Whether that node is in the round still, or has begun the next one."""
    alone = judge(ENDED_BY_AGENT)
    assert alone.culprits == ()
    joined = join_round_end(ENDED_BY_AGENT, nodes, PLACE, over=False)
    assert joined is not None
    verdict = judge(joined)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("crashed", (1,), (0,))
    assert f"rank 1 failed first: it exited with code 1: {WORDS}" in verdict.summary
    assert verdict.summary.startswith("round 0 ended: ")


def test_a_node_that_has_not_told_it_is_waited_for_and_then_left_out() -> None:
    for nodes in ({}, heard(GOES_ON), heard(replace(GOES_ON, run=ENDED_BY_AGENT.run))):
        assert join_round_end(ENDED_BY_AGENT, nodes, PLACE, over=False) is None
    assert join_round_end(ENDED_BY_AGENT, heard(GOES_ON), PLACE, over=True) == ENDED_BY_AGENT


def test_a_node_that_went_without_a_word_was_lost() -> None:
    """Its last word is of before the first end here."""
    present = replace(GOES_ON, run=ENDED_BY_AGENT.run)
    lost_peer = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    own = replace(ENDED_BY_AGENT, ranks=(seen(gone(0, 1, words=lost_peer), 1.0),))
    joined = join_round_end(own, heard(present, ago_s=9.0), PLACE, over=True)
    assert joined is not None
    verdict = judge(joined)
    assert (verdict.verdict, verdict.culprits) == ("crashed", (1,))
    assert "rank 1 was lost with node 1" in verdict.summary


def test_no_more_ends_are_told_or_read_than_a_node_has_room_for() -> None:
    many = replace(FAILED, ranks=tuple(gone(n, 1, order=n) for n in range(MOST_ENDS + 3)))
    told = left_round(many)
    assert [view.rank for view in told.ranks] == list(range(MOST_ENDS))
    too_many = replace(told, ranks=(*told.ranks, gone(9, 1)))
    with pytest.raises(BadWord, match="length <= 8"):
        read_word(pack(word_of(GOES_ON, 1, 1, left=too_many)))


def test_a_node_alone_waits_for_nobody() -> None:
    ended = EndedRounds()
    ended.leave(LeftHere(FAILED, "", None), None)
    ((_, _, remembered),) = ended.settled(None, NOW_NS)
    assert remembered.culprits == (1,)


def test_both_nodes_end_the_chapter_in_the_same_words(tmp_path: Path) -> None:
    """The first node's rank was only ended by its agent, as its numbers and words show."""
    meeting = FolderPlace(tmp_path / "meet")
    places = [NodePlace(number=n, nnodes=2) for n in range(2)]
    nodes = [AmongNodes(one, [meeting]) for one in places]
    left = [ENDED_BY_AGENT, FAILED]
    present = [job(rank(0, IN_BARRIER, silent=0.1), round=1, **FACTS), GOES_ON]
    ended = [EndedRounds(), EndedRounds()]
    settled: dict[int, tuple[Verdict, Round]] = {}

    def now(case: Case) -> Case:
        return rebased(case, time.monotonic_ns() - NOW_NS)

    def both_have() -> bool:
        for number, node in enumerate(nodes):
            node.tell(now(present[number]), None)
            for _, verdict, remembered in ended[number].settled(node, time.monotonic_ns()):
                settled[number] = verdict, remembered
        return len(settled) == 2

    with closing(nodes[0]), closing(nodes[1]):
        for number, node in enumerate(nodes):
            ended[number].leave(LeftHere(now(left[number]), f"start {number}", None), node)
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


def of_node(node: int, view: RankView, ago_s: float) -> Heard:
    word, _ = read_word(pack(word_of(job(view, **OF_THREE), node, 1)))
    return Heard(word, NOW_NS - int(ago_s * SECOND))


LEFT_HERE: Case = job(seen(gone(0, 1, words=LOST), 2.0), ended=True, **OF_THREE)


def concluded(nodes: dict[int, Heard]) -> Any:
    said = have_said(nodes, first_failure_ns(LEFT_HERE))
    return judge(replace(join_end(LEFT_HERE, nodes, said, 0), exit_code=1))


def test_a_rank_that_was_killed_on_another_node_is_named() -> None:
    nodes = {
        1: of_node(1, seen(gone(1, -9), 0.1), ago_s=1.0),
        2: of_node(2, seen(gone(2, 1, words=LOST), 0.1), ago_s=1.0),
    }
    verdict = concluded(nodes)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("crashed", (1,), (0, 2))
    assert {one.rank for one in verdict.ranks} == {0, 1, 2}


def test_a_node_that_told_nothing_more_is_lost() -> None:
    nodes = {
        1: of_node(1, rank(1, IN_BARRIER, silent=0.1), ago_s=4.0),
        2: of_node(2, seen(gone(2, 1, words=LOST), 0.1), ago_s=1.0),
    }
    verdict = concluded(nodes)
    assert (verdict.verdict, verdict.culprits) == ("crashed", (1,))
    assert "rank 1 was lost with node 1" in verdict.summary


def test_where_the_place_to_meet_went_first_no_node_is_called_lost() -> None:
    nodes = {n: of_node(n, rank(n, IN_BARRIER, silent=0.1), ago_s=4.0) for n in (1, 2)}
    verdict = concluded(nodes)
    assert (verdict.verdict, verdict.culprits) == ("crashed", ())


def test_a_job_in_which_nobody_failed_here_waits_for_no_last_words() -> None:
    assert first_failure_ns(job(gone(0, 0), ended=True, **OF_THREE)) == 0
