"""Who waits for whom, and where that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cases import (
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_CONNECT,
    IN_GETITEM,
    IN_GUARD,
    IN_INIT,
    IN_LOAD,
    IN_LOADER,
    WANTS_WORK,
    gone,
    job,
    missing,
    rank,
    worker,
)
from flights import flying
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.divergence import find_divergence
from lightning_hangcheck.judge.graph import WaitGraph, build_graph
from lightning_hangcheck.judge.job import read_job
from lightning_hangcheck.judge.operations import awaited_ranks, pending_collectives
from lightning_hangcheck.model.flight import CallSite

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView


def _graph(*ranks: RankView) -> WaitGraph:
    read = read_job(job(*ranks))
    pending = pending_collectives(read)
    awaited = awaited_ranks(read, pending)
    return build_graph(read, find_divergence(read, pending, awaited), awaited)


def _arrows(graph: WaitGraph) -> set[tuple[str, str]]:
    return {(edge.source, edge.target) for edge in graph.edges}


def test_a_rank_in_a_collective_waits_for_all_that_are_not_in_one() -> None:
    graph = _graph(rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD), gone(2, 1), missing(3))
    assert _arrows(graph) == {("rank:0", f"rank:{other}") for other in (1, 2, 3)}
    assert (graph.ends, graph.waiters) == ((1, 2, 3), (0,))
    assert graph.edges[0].through == "in all_reduce"


def test_ranks_in_different_collectives_wait_for_each_other() -> None:
    graph = _graph(rank(0, IN_ALL_REDUCE), rank(1, IN_BARRIER))
    assert _arrows(graph) == {("rank:0", "rank:1"), ("rank:1", "rank:0")}
    assert (graph.ends, graph.waiters) == ((0, 1), ())


def test_one_rank_apart_from_a_majority_is_the_end() -> None:
    graph = _graph(rank(0, IN_ALL_REDUCE), rank(1, IN_BARRIER), rank(2, IN_ALL_REDUCE))
    assert (graph.ends, graph.waiters) == ((1,), (0, 2))


def test_two_halves_in_different_collectives_are_all_ends() -> None:
    graph = _graph(
        rank(0, IN_ALL_REDUCE),
        rank(1, IN_ALL_REDUCE),
        rank(2, IN_BARRIER),
        rank(3, IN_BARRIER),
    )
    assert graph.ends == (0, 1, 2, 3)


def test_ranks_in_one_collective_wait_for_nobody_known() -> None:
    assert _graph(rank(0, IN_ALL_REDUCE), rank(1, IN_ALL_REDUCE)) == WaitGraph()


def test_a_rank_without_a_store_is_the_end_of_the_rendezvous() -> None:
    graph = _graph(rank(0, IN_INIT), rank(1, IN_CONNECT))
    assert _arrows(graph) == {("rank:0", "rank:1"), ("rank:1", "host:store")}
    assert (graph.ends, graph.waiters) == ((1,), (0,))


def test_a_rank_without_a_store_waits_for_the_rank_that_should_keep_it() -> None:
    graph = _graph(rank(0, IN_LOAD), rank(1, IN_CONNECT))
    assert _arrows(graph) == {("rank:1", "rank:0")}


def test_a_rank_waits_for_its_workers_that_owe_a_batch() -> None:
    loading = rank(1, IN_LOADER, children=[worker(0, WANTS_WORK), worker(1, IN_GETITEM)])
    graph = _graph(rank(0, IN_ALL_REDUCE), loading)
    assert _arrows(graph) == {("rank:0", "rank:1"), ("rank:1", "worker:1/1")}
    assert (graph.ends, graph.waiters, graph.between_ranks) == ((1,), (0,), True)


def test_a_rank_that_waits_only_for_its_worker_keeps_no_rank_waiting() -> None:
    graph = _graph(rank(0, IN_LOADER, children=[worker(0, IN_GETITEM)]))
    assert (graph.ends, graph.between_ranks) == ((0,), False)


def test_a_guard_waits_for_the_ranks_that_have_not_come() -> None:
    graph = _graph(rank(0, IN_LOAD), rank(1, IN_GUARD), rank(2, IN_GUARD))
    assert _arrows(graph) == {("rank:1", "rank:0"), ("rank:2", "rank:0")}


def test_a_guard_against_a_collective_is_a_cycle() -> None:
    assert _graph(rank(0, IN_GUARD), rank(1, IN_ALL_REDUCE)).ends == (0, 1)


def test_a_large_graph_keeps_its_ends_with_few_edges() -> None:
    ranks = [rank(n, IN_ALL_REDUCE if n < 200 else IN_LOAD) for n in range(400)]
    graph = _graph(*ranks)
    assert len(graph.edges) == 399
    assert (graph.ends, graph.waiters) == (tuple(range(200, 400)), tuple(range(200)))


def test_of_two_ends_the_one_that_most_are_led_to_is_the_culprit() -> None:
    """Two ranks wait for rank 3, one for rank 4, which is stopped: a rule that is asked earlier."""
    trio = {"group": "a", "ranks": (0, 1, 3)}
    pair = {"group": "b", "ranks": (2, 4)}
    stopped = rank(4, IN_LOAD, state="T")
    case = job(
        flying(rank(0, IN_ALL_REDUCE), "all_reduce 4", **trio),  # type: ignore[arg-type]
        flying(rank(1, IN_ALL_REDUCE), "all_reduce 4", **trio),  # type: ignore[arg-type]
        flying(rank(2, IN_ALL_REDUCE), "all_reduce 4", **pair),  # type: ignore[arg-type]
        flying(rank(3, IN_LOAD), **trio),  # type: ignore[arg-type]
        flying(stopped, **pair),  # type: ignore[arg-type]
    )
    verdict = judge(case)
    assert (verdict.culprits, verdict.cause) == ((3,), "rank_stalled")


def test_a_rank_that_advanced_after_it_was_sampled_waits_there_no_more() -> None:
    """Its look caught it in a collective of a moment: an idle evaluator keeps nobody waiting."""
    just_now, evaluates = rank(0, IN_ALL_REDUCE, silent=0.0), rank(1, IN_LOAD, silent=60.0)
    newest = just_now.processes[0].samples[-1]
    case = job(just_now, evaluates, taken_ns=newest.taken_ns + 500_000_000)
    read = read_job(case)
    assert _arrows(build_graph(read, None, {})) == set()
    assert read.ranks[0].activity == "moving"
    assert judge(case).verdict == "healthy"


def test_a_rank_waits_only_for_members_of_groups_with_which_it_has_called() -> None:
    """Its operation is in no record yet; whoever is in none of its groups was never waited for."""
    other, train = CallSite(frames=IN_BARRIER[:-1]), CallSite(frames=IN_ALL_REDUCE[:-1])
    both, steps = (
        flying(rank(0, IN_ALL_REDUCE), *ops, group=group, open_ops=0, ranks=members, called=sites)
        for group, ops, members, sites in (
            ("0", ("barrier",), (0, 1, 2), (other,)),
            ("7", ("all_reduce", "all_reduce"), (0, 1), (other, train)),
        )
    )
    assert both.flight is not None
    assert steps.flight is not None
    groups = (*both.flight.groups, *steps.flight.groups)
    waits = replace(steps, flight=replace(steps.flight, groups=groups))
    moving = (IN_LOAD, (*IN_LOAD, IN_LOAD[-1]), IN_LOAD)
    graph = _graph(waits, rank(1, *moving, cpu=1.0), rank(2, IN_LOAD))
    assert _arrows(graph) == {("rank:0", "rank:1")}
