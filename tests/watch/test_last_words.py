"""Which nodes told how the job ended, and what is made of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cases import IN_BARRIER, NOW_NS, SECOND, gone, job, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.nodes.encoding import pack, read_word
from lightning_hangcheck.nodes.peers import Heard
from lightning_hangcheck.nodes.word import word_of
from lightning_hangcheck.watch.other_nodes.joining import first_failure_ns, have_said, join_end

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView

LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4711"
FACTS: dict[str, Any] = {"world_size": 3, "local_world_size": 1, "nnodes": 3}


def seen(view: RankView, ago_s: float) -> RankView:
    assert view.process_exit is not None
    at_ns = NOW_NS - int(ago_s * SECOND)
    return replace(view, process_exit=replace(view.process_exit, seen_ns=at_ns))


def heard(node: int, view: RankView, ago_s: float) -> Heard:
    word, _ = read_word(pack(word_of(job(view, **FACTS), node, 1)))
    return Heard(word, NOW_NS - int(ago_s * SECOND))


OWN: Case = job(seen(gone(0, 1, words=LOST), 2.0), ended=True, **FACTS)


def concluded(nodes: dict[int, Heard]) -> Any:
    said = have_said(nodes, first_failure_ns(OWN))
    return judge(replace(join_end(OWN, nodes, said, 0), exit_code=1))


def test_a_rank_that_was_killed_on_another_node_is_named() -> None:
    nodes = {
        1: heard(1, seen(gone(1, -9), 0.1), ago_s=1.0),
        2: heard(2, seen(gone(2, 1, words=LOST), 0.1), ago_s=1.0),
    }
    verdict = concluded(nodes)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("crashed", (1,), (0, 2))
    assert {one.rank for one in verdict.ranks} == {0, 1, 2}


def test_a_node_that_told_nothing_more_is_lost() -> None:
    nodes = {
        1: heard(1, rank(1, IN_BARRIER, silent=0.1), ago_s=4.0),
        2: heard(2, seen(gone(2, 1, words=LOST), 0.1), ago_s=1.0),
    }
    verdict = concluded(nodes)
    assert (verdict.verdict, verdict.culprits) == ("crashed", (1,))
    assert "rank 1 was lost with node 1" in verdict.summary


def test_where_the_place_to_meet_went_first_no_node_is_called_lost() -> None:
    nodes = {n: heard(n, rank(n, IN_BARRIER, silent=0.1), ago_s=4.0) for n in (1, 2)}
    verdict = concluded(nodes)
    assert (verdict.verdict, verdict.culprits) == ("crashed", ())


def test_a_job_in_which_nobody_failed_here_waits_for_no_last_words() -> None:
    assert first_failure_ns(job(gone(0, 0), ended=True, **FACTS)) == 0
