"""Ranks and nodes that do not come, and nodes of which nothing is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import IN_ALL_REDUCE, IN_CONNECT, IN_INIT, IN_LOAD, MAIN, job, missing, rank, torch, user
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat, CheckpointMark
from lightning_hangcheck.model.case import RankView, SilentNode
from lightning_hangcheck.model.flight import FlightRecord
from lightning_hangcheck.model.run import RankPlace, Round

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.verdict import Verdict


def _told(case: Case) -> tuple[Any, ...]:
    verdict = judge(case)
    return verdict.verdict, verdict.culprits, verdict.victims, verdict.cause


def test_who_is_announced_may_come_late_where_ranks_are_started_one_after_another() -> None:
    """By a program of the user's own, which proves nothing of ranks that are not there yet."""
    for silent, kind in ((20.0, "suspect"), (301.0, "hang")):
        ranks = rank(0, IN_INIT, silent=silent), missing(1, silent=silent)
        assert _told(job(*ranks, one_by_one=True))[:2] == (kind, (1,))


def test_rank_0_that_keeps_the_store_waits_for_the_ranks_that_are_still_on_their_way() -> None:
    imports = rank(1, IN_LOAD, (MAIN, user("<module>", 2)), cpu=0.9, silent=40.0)
    assert judge(job(rank(0, IN_CONNECT, silent=40.0), imports)).verdict == "healthy"
    stuck = judge(job(rank(0, IN_CONNECT, silent=40.0), rank(1, IN_LOAD, silent=40.0)))
    assert (stuck.verdict, stuck.culprits, stuck.victims) == ("hang", (1,), (0,))


def test_a_store_that_opened_late_is_found_at_the_next_try() -> None:
    """The pauses between tries grow with them, so that the next may be as long as all before."""

    def after(opened_s: float) -> tuple[Any, ...]:
        return _told(job(rank(0, IN_INIT, silent=opened_s), rank(1, IN_CONNECT, silent=60.0)))[:2]

    assert after(25.0) == ("healthy", ())
    assert after(59.0) == ("hang", (1,))


def _at_store(number: int, silent: float, **counted: int) -> RankView:
    """A rank in the call that makes the client of the store, by torch's counters."""
    flight = FlightRecord(taken_ns=1, waits={"TCPStore__init": 1, **counted})
    return msgspec.structs.replace(rank(number, IN_CONNECT, silent=silent), flight=flight)


BY_HAND = {"world_size": 3, "local_world_size": None}


def test_rank_0_that_counts_who_came_to_its_store_is_no_culprit() -> None:
    keeper = _at_store(0, 301.0, TCPStore__waitForWorkers=1)
    two = job(keeper, rank(1, IN_INIT, silent=301.0), **BY_HAND)
    assert _told(two) == ("hang", (2,), (0, 1), "rendezvous")
    alone = judge(job(keeper, **BY_HAND))
    assert (alone.verdict, alone.culprits, alone.victims) == ("hang", (1, 2), (0,))
    assert "WORLD_SIZE is 3, and ranks 1-2 never came" in alone.summary
    assert [one.rank for one in alone.evidence if one.kind == "stack"] == [0]
    assert (
        judge(job(_at_store(0, 20.0, TCPStore__waitForWorkers=1), **BY_HAND)).verdict == "suspect"
    )


def test_a_rank_0_that_never_came_is_named_by_those_that_find_no_store() -> None:
    lost = (_at_store(1, 301.0), _at_store(2, 301.0))
    verdict = judge(job(*lost, **BY_HAND))
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (0,), (1, 2))
    assert "rank 0, which must serve it, never came" in verdict.summary
    assert judge(job(*lost, nnodes=2, **BY_HAND)).culprits == (1, 2)


AGENT = torch("SimpleElasticAgent._rendezvous", "distributed/elastic/agent/server/api.py")


def test_a_launcher_that_waits_for_a_node_is_told_with_address_and_who_is_missing() -> None:
    command = "torchrun --nnodes=2 --node_rank 0 --rdzv-endpoint=10.0.0.1:29400 train.py"
    inside = torch("next_rendezvous", "distributed/elastic/rendezvous/dynamic_rendezvous.py")
    waits = rank(0, (AGENT, inside), silent=10.0)
    verdict = judge(job(waits, command=command, local_world_size=None))
    assert (verdict.verdict, verdict.culprits) == ("suspect", ())
    assert (verdict.cause, verdict.phase) == ("rendezvous", "rendezvous")
    assert "no rank has started: torchrun (pid 100) has waited 10 s" in verdict.summary
    assert "for the other nodes of 2 at 10.0.0.1:29400 (this is node 0)" in verdict.summary
    assert "torchrun on every other node" in verdict.remedies[0].in_words
    late = job(rank(0, (AGENT,), silent=300.0), command=command, local_world_size=None)
    assert judge(late).verdict == "hang"


def test_an_option_of_the_script_is_not_torchruns() -> None:
    """It may have the same name: ``--nnodes`` of a script says what that thinks."""
    command = "torchrun --standalone --nproc_per_node 2 train.py --nnodes 8 --master-addr=nowhere"
    waits = rank(0, (AGENT, JOINS), silent=10.0)
    summary = judge(job(waits, command=command, local_world_size=None)).summary
    assert "has waited 10 s for the other nodes" in summary
    assert "of 8" not in summary
    assert "nowhere" not in summary


BEFORE = Round(
    number=0,
    verdict="crashed",
    culprits=(1,),
    summary="rank 1 was lost with node 1",
    ranks=(RankPlace(rank=0, host="hosta"), RankPlace(rank=1, host="hostb")),
)


def test_a_replacement_that_never_comes_is_told_with_who_was_there_before() -> None:
    """A job of fixed size has lost a node: torchrun ended its ranks, and waits for another one."""
    waits = replace(rank(0, (AGENT,), silent=310.0), host="hosta")
    lost = SilentNode(number=1, ranks="1", silent_s=320.0)
    facts: dict[str, Any] = {
        "command": "torchrun --nnodes=2 --rdzv-endpoint=a:1 train.py",
        "round": 1,
    }
    case = job(waits, local_world_size=None, earlier=(BEFORE,), silent_nodes=(lost,), **facts)
    verdict = judge(case)
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (), "rendezvous")
    assert "no rank has started again: torchrun (pid 100) has waited 5 min" in verdict.summary
    assert (
        "round 0 had rank 1 on hostb; node 1 (rank 1) has not been heard for 5 min"
    ) in verdict.summary
    soon = replace(case, ranks=(replace(waits, silent_for_s=10.0, idle_for_s=10.0),))
    assert judge(soon).verdict == "suspect"
    no_time = replace(case, ranks=(replace(waits, silent_for_s=9.0, idle_for_s=9.0),))
    assert judge(no_time).verdict == "healthy"


def test_ranks_that_wait_for_one_that_was_there_before_say_where_it_was() -> None:
    """torchrun's static rendezvous starts them again without asking who is left."""
    waits = replace(rank(0, IN_INIT, silent=301.0), host="hosta")
    facts: dict[str, Any] = {"world_size": 2, "local_world_size": 1, "nnodes": 2, "round": 1}
    verdict = judge(job(waits, earlier=(BEFORE,), **facts))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "rendezvous")
    assert "round 0 had rank 1 on hostb" in verdict.summary


ELASTIC = "torchrun --nnodes=1:3 --rdzv-backend=c10d --rdzv-endpoint=10.0.0.1:29400 train.py"
PATIENT = ELASTIC.replace("train", "--rdzv-conf=timeout=60,last_call_timeout=90 train")
JOINS = torch("next_rendezvous", "distributed/elastic/rendezvous/dynamic_rendezvous.py")


@pytest.mark.parametrize(
    ("command", "silent", "kind"),
    [
        (ELASTIC, 10.0, "healthy"),
        (ELASTIC, 49.0, "healthy"),
        (ELASTIC, 50.0, "suspect"),
        (ELASTIC, 300.0, "hang"),
        (PATIENT, 109.0, "healthy"),
        (PATIENT, 110.0, "suspect"),
        (ELASTIC.replace("1:3", "3:3"), 10.0, "suspect"),
    ],
)
def test_a_launcher_that_gives_more_nodes_time_to_join_waits_for_nobody(
    command: str, silent: float, kind: str
) -> None:
    """torchrun's last call: it goes on with those that are there."""
    waits = rank(0, (AGENT, JOINS), silent=silent)
    assert judge(job(waits, command=command, local_world_size=None)).verdict == kind


def test_a_launcher_that_has_joined_and_is_told_no_address_is_told_so() -> None:
    """What torch 2.13 does to a node that joins later."""
    build = torch("build", "distributed/elastic/rendezvous/api.py")
    waits = rank(0, (AGENT, JOINS, build), silent=10.0)
    verdict = judge(job(waits, command=ELASTIC, local_world_size=None))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("suspect", (), "rendezvous")
    assert (
        "torchrun (pid 100) has joined and waited 10 s for MASTER_ADDR, which the first of the "
        "other nodes of 1:3 at 10.0.0.1:29400 must set"
    ) in verdict.summary
    first, *_ = verdict.remedies
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in first.text


def test_ranks_that_were_sent_to_different_stores_are_told_apart() -> None:
    """What torch 2.13 may do where the first node of a round is another one than before."""
    views = [rank(number, IN_INIT, silent=15.0) for number in range(3)]
    sent = [
        msgspec.structs.replace(view, store_port=port)
        for view, port in zip(views, (29_500, 29_600, 29_600), strict=True)
    ]
    verdict = judge(job(*sent, world_size=3))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0, 1, 2), "rendezvous")
    assert verdict.summary.endswith(
        "they were sent to different stores (MASTER_PORT), rank 0 looks for it at port 29500, "
        "ranks 1-2 look for it at port 29600"
    )
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in verdict.remedies[0].in_words
    same = [msgspec.structs.replace(view, store_port=29_500) for view in views]
    assert "different stores" not in judge(job(*same, world_size=3)).summary


MARK = Beat(pid=102, checkpoint=CheckpointMark(5, "Model created", ""))
CUT = SilentNode(
    number=1,
    ranks="2-3",
    silent_s=40.0,
    reach="unanswered",
    unanswered_s=39.0,
    last_known="checkpoint 5 (Model created), step 120",
)


def unheard(number: int) -> RankView:
    return replace(rank(number, beat=MARK), unheard_for_s=40.0, host="node1")


def verdict_of(node: SilentNode, *here: RankView, **fields: Any) -> Verdict:
    ranks = here or (rank(0, IN_ALL_REDUCE), rank(1, IN_ALL_REDUCE))
    return judge(job(*ranks, unheard(2), unheard(3), silent_nodes=(node,), **fields))


def waiting(silent: float) -> tuple[RankView, RankView]:
    return rank(0, IN_ALL_REDUCE, silent=silent), rank(1, IN_ALL_REDUCE, silent=silent)


def test_ranks_that_wait_for_a_node_that_cannot_be_reached_name_its_ranks() -> None:
    verdict = verdict_of(CUT)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("suspect", (2, 3), (0, 1))
    assert verdict.cause == "network_wait"
    assert verdict.summary.startswith(
        "ranks 2-3 cannot be reached: node 1 (ranks 2-3) has not been heard for 40 s: what is sent "
        "to its ranks has not been acknowledged for 39 s: its host is down, or the network is cut; "
        "last known there: checkpoint 5 (Model created), step 120"
    )
    assert "ranks 0-1 wait for them in all_reduce" in verdict.summary
    assert verdict.phase is not None
    assert "ping" in verdict.remedies[0].in_words
    assert {state.rank: state.state for state in verdict.ranks}[3] == "unseen"


def test_it_is_a_hang_after_the_stall_timeout_for_the_network_may_come_back() -> None:
    assert verdict_of(CUT, *waiting(299.0)).verdict == "suspect"
    assert verdict_of(CUT, *waiting(301.0)).verdict == "hang"


@pytest.mark.parametrize("reach", ["answers", "goes_on", "unknown"])
def test_of_a_node_that_may_only_have_lost_its_sidecar_nothing_is_suspected(reach: Any) -> None:
    """Its ranks may be computing: nobody sees them."""
    node = replace(CUT, reach=reach, unanswered_s=0.0)
    assert verdict_of(node).verdict == "healthy"
    verdict = verdict_of(node, *waiting(301.0))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (2, 3), "unknown")
    assert verdict.summary.startswith("ranks 2-3 are not seen: node 1 (ranks 2-3) has not been")


def test_a_rank_that_is_seen_to_be_late_is_blamed_alone() -> None:
    verdict = verdict_of(CUT, rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD))
    assert (verdict.verdict, verdict.culprits) == ("hang", (1,))
