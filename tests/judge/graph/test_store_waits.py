"""Ranks that wait for a key of the store that they share: a rank brings it, not its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import FUTEX, IN_BARRIER, IN_LOAD, MAIN, gone, job, rank, user, waiting_for
from msgspec.structs import replace

from lightning_hangcheck.judge import judge

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView

IN_KEY = (MAIN, user("read_settings", 20))
PORT = 29500
AGENT = 50


def at_store(number: int, *, port: int = PORT, silent: float = 31.0) -> RankView:
    target = waiting_for("socket", "recvfrom", f"127.0.0.1:{port}", AGENT)
    return replace(rank(number, IN_KEY, silent=silent, **target), store_port=PORT)


def told(case: Case) -> tuple[Any, ...]:
    verdict = judge(case)
    return verdict.verdict, verdict.culprits, verdict.cause, verdict.victims


def test_they_wait_for_the_rank_that_stands_elsewhere() -> None:
    stuck = rank(1, IN_LOAD, waits_for=FUTEX)
    assert told(job(at_store(0), stuck, at_store(2))) == ("hang", (1,), "rank_stalled", (0, 2))


def test_while_it_computes_nothing_is_called() -> None:
    works = rank(1, IN_LOAD, cpu=1.0)
    assert judge(job(at_store(0), works, at_store(2))).verdict != "hang"


def test_a_rank_that_is_gone_brings_nothing_however_well_it_left() -> None:
    case = job(at_store(0, silent=5.0), gone(1, 0, silent=5.0), at_store(2, silent=5.0))
    assert told(case) == ("dead", (1,), "process_dead", (0, 2))


def test_as_long_as_another_could_bring_it_a_rank_that_left_well_is_nobodys_fault() -> None:
    works = rank(1, IN_LOAD, cpu=1.0)
    assert judge(job(at_store(0), works, gone(2, 0))).verdict not in ("hang", "dead")


def test_others_that_wait_for_ranks_bring_nothing_either() -> None:
    others = [rank(number, IN_BARRIER) for number in (1, 2)]
    verdict = judge(job(at_store(0), *others))
    assert (verdict.culprits, verdict.cause, verdict.victims) == ((0,), "rank_stalled", (1, 2))
    assert "waiting for a key of the store that no rank has set" in verdict.summary


@pytest.mark.parametrize(("silent", "kind"), [(9.9, "healthy"), (10.0, "suspect"), (300.0, "hang")])
def test_where_all_wait_there_an_outsider_could_bring_it(silent: float, kind: str) -> None:
    verdict = judge(job(*(at_store(number, silent=silent) for number in range(2))))
    assert verdict.verdict == kind
    assert verdict.cause in (None, "rank_stalled")


def test_a_server_at_another_port_is_a_remote_end() -> None:
    elsewhere = [at_store(number, port=8080, silent=11.0) for number in range(2)]
    assert judge(job(*elsewhere)).cause == "network_wait"


def test_hundreds_that_wait_there_for_hundreds_are_told_with_few_edges() -> None:
    waiting = [at_store(number) for number in range(200)]
    stuck = [rank(number, IN_LOAD, waits_for=FUTEX) for number in range(200, 400)]
    verdict = judge(job(*waiting, *stuck))
    assert verdict.culprits == tuple(range(200, 400))
    assert verdict.victims == tuple(range(200))
    assert len(verdict.wait_for) == 399
