"""Ranks and nodes that do not come, and nodes of which nothing is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_CONNECT,
    IN_INIT,
    IN_LOAD,
    MAIN,
    agrees,
    job,
    missing,
    rank,
    torch,
    user,
    waiting_for,
)
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat, CheckpointMark
from lightning_hangcheck.model.case import RankView, SilentNode
from lightning_hangcheck.model.flight import FlightRecord
from lightning_hangcheck.model.run import RankPlace, Round

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict

BY_HAND: dict[str, Any] = {"world_size": 3, "local_world_size": None}
AGENT = torch("SimpleElasticAgent._rendezvous", "distributed/elastic/agent/server/api.py")
JOINS = torch("next_rendezvous", "distributed/elastic/rendezvous/dynamic_rendezvous.py")
BUILD = torch("build", "distributed/elastic/rendezvous/api.py")
TORCHRUN = "torchrun --nnodes=2 --node_rank 0 --rdzv-endpoint=10.0.0.1:29400 train.py"
ELASTIC = "torchrun --nnodes=1:3 --rdzv-backend=c10d --rdzv-endpoint=10.0.0.1:29400 train.py"
PATIENT = ELASTIC.replace("train", "--rdzv-conf=timeout=60,last_call_timeout=90 train")
BEFORE = Round(
    number=0,
    verdict="crashed",
    culprits=(1,),
    summary="rank 1 was lost with node 1",
    ranks=(RankPlace(rank=0, host="hosta"), RankPlace(rank=1, host="hostb")),
)
LOST = SilentNode(number=1, ranks="1", silent_s=320.0)


def at_store(number: int, silent: float = 301.0, **counted: int) -> RankView:
    """A rank in the call that makes the client of the store, by torch's counters."""
    flight = FlightRecord(taken_ns=1, waits={"TCPStore__init": 1, **counted})
    return replace(rank(number, IN_CONNECT, silent=silent), flight=flight)


def keeper(silent: float = 301.0) -> RankView:
    """Rank 0, which counts who came to its store."""
    return at_store(0, silent, TCPStore__waitForWorkers=1)


def launcher(silent: float, *inside: Any, command: str = TORCHRUN, **facts: Any) -> Case:
    """A launcher that waits for other nodes."""
    waits = replace(rank(0, (AGENT, *inside), silent=silent), host="hosta")
    return job(waits, command=command, local_world_size=None, **facts)


def replacing(silent: float) -> Case:
    """A job of fixed size has lost a node: torchrun ended its ranks, and waits for another one."""
    return launcher(silent, round=1, earlier=(BEFORE,), silent_nodes=(LOST,))


def at_ports(*ports: int) -> Case:
    views = (rank(number, IN_INIT, silent=15.0) for number in range(3))
    sent = (replace(view, store_port=port) for view, port in zip(views, ports, strict=True))
    return job(*sent, world_size=3)


@pytest.mark.parametrize(
    ("asked", "verdict"), [({}, "hang"), (waiting_for("socket", "poll", "10.0.0.53:53"), "suspect")]
)
def test_ranks_that_ask_a_name_server_have_not_come_to_the_others_yet(
    asked: dict[str, Any], verdict: str
) -> None:
    views = (rank(number, IN_INIT, silent=16.0, **asked) for number in range(2))
    assert judge(job(*(replace(view, store_port=29500) for view in views))).verdict == verdict


ABSENT: dict[str, tuple[Case, dict[str, Any]]] = {
    **{
        f"of a program that starts ranks one by one a rank may come late: {silent} s": (
            job(rank(0, IN_INIT, silent=silent), missing(1, silent=silent), one_by_one=True),
            {"verdict": kind, "culprits": (1,)},
        )
        for silent, kind in ((20.0, "suspect"), (301.0, "hang"))
    },
    "rank 0, which keeps the store, waits for ranks that are still on their way": (
        job(rank(0, IN_CONNECT, silent=40.0),
            rank(1, IN_LOAD, (MAIN, user("<module>", 2)), cpu=0.9, silent=40.0)),
        {"verdict": "healthy"}),
    "and for one that is stuck": (
        job(rank(0, IN_CONNECT, silent=40.0), rank(1, IN_LOAD, silent=40.0)),
        {"verdict": "hang", "culprits": (1,), "victims": (0,)}),
    **{
        f"a store that opened late is found at the next try, after {opened_s} s more": (
            job(rank(0, IN_INIT, silent=opened_s), rank(1, IN_CONNECT, silent=60.0)),
            {"verdict": kind},
        )
        for opened_s, kind in ((25.0, "healthy"), (59.0, "hang"))
    },
    "rank 0 that counts who came to its store is no culprit": (
        job(keeper(), rank(1, IN_INIT, silent=301.0), **BY_HAND),
        {"verdict": "hang", "culprits": (2,), "victims": (0, 1), "cause": "rendezvous"}),
    "nor where nobody came": (
        job(keeper(), **BY_HAND),
        {"verdict": "hang", "culprits": (1, 2), "victims": (0,),
         "says": "WORLD_SIZE is 3, and ranks 1-2 never came"}),
    "who may still come": (job(keeper(20.0), **BY_HAND), {"verdict": "suspect"}),
    "a rank 0 that never came is named by those that find no store": (
        job(at_store(1), at_store(2), **BY_HAND),
        {"verdict": "hang", "culprits": (0,), "victims": (1, 2),
         "says": "rank 0, which must serve it, never came"}),
    "but where it may be on another node": (
        job(at_store(1), at_store(2), nnodes=2, **BY_HAND), {"culprits": (1, 2)}),
    "a launcher that waits for a node is told with the address and who is missing": (
        launcher(10.0, JOINS),
        {"verdict": "suspect", "culprits": (), "cause": "rendezvous", "phase": "rendezvous",
         "says": "no rank has started: torchrun (pid 100) has waited 10 s for the other nodes of 2 "
         "at 10.0.0.1:29400 (this is node 0)", "now": "torchrun on every other node"}),
    "and is a hang after the stall timeout": (launcher(300.0), {"verdict": "hang"}),
    "an option of the script is not torchrun's": (
        launcher(10.0, JOINS,
                 command="torchrun --standalone train.py --nnodes 8 --master-addr=nowhere"),
        {"summary": "no rank has started: torchrun (pid 100) has waited 10 s for the other nodes"}),
    "a replacement that never comes is told with who was there before": (
        replacing(310.0),
        {"verdict": "hang", "culprits": (), "cause": "rendezvous",
         "says": "no rank has started again: torchrun (pid 100) has waited 5 min for the other "
         "nodes of 2 at 10.0.0.1:29400 (this is node 0); round 0 had rank 1 on hostb; node 1 "
         "(rank 1) has not been heard for 5 min"}),
    "it may come soon": (replacing(10.0), {"verdict": "suspect"}),
    "it has had no time": (replacing(9.0), {"verdict": "healthy"}),
    "ranks that were started again without asking who is left say where the other one was": (
        job(replace(rank(0, IN_INIT, silent=301.0), host="hosta"), earlier=(BEFORE,), world_size=2,
            local_world_size=1, nnodes=2, round=1),
        {"verdict": "hang", "culprits": (1,), "cause": "rendezvous",
         "says": "round 0 had rank 1 on hostb"}),
    **{
        f"a launcher that makes its last call waits for nobody: {silent} s of {command[9:60]}": (
            launcher(silent, JOINS, command=command), {"verdict": kind},
        )
        for command, silent, kind in (
            (ELASTIC, 10.0, "healthy"),
            (ELASTIC, 49.0, "healthy"),
            (ELASTIC, 50.0, "suspect"),
            (ELASTIC, 300.0, "hang"),
            (PATIENT, 109.0, "healthy"),
            (PATIENT, 110.0, "suspect"),
            (ELASTIC.replace("1:3", "3:3"), 10.0, "suspect"),
        )
    },
    "a launcher that has joined later is told no address, by torch 2.13": (
        launcher(10.0, JOINS, BUILD, command=ELASTIC),
        {"verdict": "suspect", "culprits": (), "now": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
         "says": "torchrun (pid 100) has joined and waited 10 s for MASTER_ADDR, which the first of"
         " the other nodes of 1:3 at 10.0.0.1:29400 must set"}),
    "or ranks are sent to different stores": (
        at_ports(29_500, 29_600, 29_600),
        {"verdict": "hang", "culprits": (0, 1, 2), "now": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
         "says": "they were sent to different stores (MASTER_PORT), rank 0 looks for it at port "
         "29500, ranks 1-2 look for it at port 29600"}),
    "but not to one and the same": (
        at_ports(29_500, 29_500, 29_500), {"says": "all known ranks are there"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ABSENT)
def test_who_never_came(name: str) -> None:
    case, expected = ABSENT[name]
    agrees(judge(case), expected)


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
