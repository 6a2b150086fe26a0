"""Ranks that were promised but have no process, and ranks that cannot be seen from here."""

from __future__ import annotations

from lightning_hangcheck.gather.case_building import build_case
from lightning_hangcheck.model.case import Case, Limits, RankView, RunFacts


def case_of(world_size: int, local_world_size: int | None, *ranks: int) -> Case:
    return build_case(
        run=RunFacts(
            run_id="run",
            command="train",
            started_at="2026-01-01T00:00:00.000Z",
            world_size=world_size,
            local_world_size=local_world_size,
        ),
        ranks=[RankView(rank=rank, pid=100 + rank, silent_for_s=5.0) for rank in ranks],
        gaps=[],
        limits=Limits(),
        taken_at="2026-01-01T00:00:10.000Z",
        taken_ns=0,
    )


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
