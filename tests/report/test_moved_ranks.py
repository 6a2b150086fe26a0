"""The rounds of a run as all its nodes saw them, and the ranks that moved."""

from __future__ import annotations

from lightning_hangcheck.model.run import RankPlace, Round, RunRecord
from lightning_hangcheck.report.saved_run import MOST_LINES, joined_rounds, moved_ranks


def seen(number: int, host: str, *ranks: int, **facts: object) -> Round:
    places = tuple(RankPlace(rank=rank, host=host, pid=10 + rank) for rank in ranks)
    return Round(number=number, ranks=places, **facts)  # type: ignore[arg-type]


def record(*rounds: Round) -> RunRecord:
    return RunRecord(run_id="run", command="", started_at="", rounds=rounds)


FIRST = record(seen(0, "a", 0, 1, summary="rank 1 lost a peer"))
SECOND = record(
    seen(0, "b", 2, 3, culprits=(3,), summary="rank 3 failed first"),
    seen(1, "b", 0, 1),
    seen(2, "b", 2, 3),
)
THIRD = record(seen(2, "c", 0, 1))


def test_rounds_of_all_nodes_are_the_chapters_of_one_run() -> None:
    rounds = joined_rounds([FIRST, SECOND, THIRD])
    assert [(one.number, len(one.ranks)) for one in rounds] == [(0, 4), (1, 2), (2, 4)]
    assert rounds[0].summary == "rank 3 failed first", "the node that knows a culprit tells the end"
    assert rounds == joined_rounds([THIRD, SECOND, FIRST])


def test_ranks_that_changed_their_host_are_told_those_that_moved_alike_together() -> None:
    assert moved_ranks(joined_rounds([FIRST, SECOND, THIRD])) == [
        "ranks 0-1 ran on a (round 0), b (round 1), c (round 2)"
    ]


def test_a_round_in_which_a_rank_was_not_there_is_no_move() -> None:
    there = record(seen(0, "a", 0, 1), seen(1, "a", 0), seen(2, "a", 0, 1))
    assert moved_ranks(joined_rounds([there])) == []


def test_lines_are_few_however_many_ranks_moved_and_hosts_are_shown_as_text() -> None:
    before = [seen(0, f"h{rank}", rank) for rank in range(50)]
    after = [seen(1, f"n{rank}\x1b[31m", rank) for rank in range(50)]
    lines = moved_ranks(joined_rounds([record(one) for one in (*before, *after)]))
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "and 44 more moved: see run.json"
    assert "\x1b" not in "".join(lines)
