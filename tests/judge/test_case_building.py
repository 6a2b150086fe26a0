"""Ranks that were promised but have no process, and ranks that cannot be seen from here."""

from __future__ import annotations

from lightning_hangcheck.judge.joining import complete_case
from lightning_hangcheck.model.case import Case, RankView, RunFacts


def case_of(world_size: int, local_world_size: int | None, *ranks: int) -> Case:
    case = Case(
        run=RunFacts(
            run_id="run",
            command="train",
            started_at="2026-01-01T00:00:00.000Z",
            world_size=world_size,
            local_world_size=local_world_size,
        ),
        ranks=tuple(RankView(rank=one, pid=100 + one, silent_for_s=5.0) for one in ranks),
        taken_at="2026-01-01T00:00:10.000Z",
        taken_ns=0,
    )
    return complete_case(case)


def test_a_rank_that_never_came_joins_without_a_process() -> None:
    case = case_of(3, 3, 1, 0)
    assert [(view.rank, view.pid) for view in case.ranks] == [(0, 100), (1, 101), (2, None)]
    assert case.gaps == ()


def test_ranks_of_other_nodes_are_one_gap() -> None:
    case = case_of(16, 8, *range(8))
    assert len(case.ranks) == 8
    assert [gap.what for gap in case.gaps] == ["ranks 8-15"]


def test_an_unknown_world_size_is_what_was_seen() -> None:
    assert case_of(0, None, 0, 1).run.world_size == 2
