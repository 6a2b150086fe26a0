"""The silences of a run, and what each cost."""

from __future__ import annotations

from lightning_hangcheck.ledger.spending import Stalls
from lightning_hangcheck.model.verdict import Verdict

SECOND = 1_000_000_000


def verdict(kind: str, stalled_for_s: float, cause: str | None = "file_lock") -> Verdict:
    return Verdict(
        verdict=kind,  # type: ignore[arg-type]
        run_id="r",
        command="c",
        started_at="2026-11-20T10:00:00Z",
        detected_at="2026-11-20T10:00:00Z",
        stalled_for_s=stalled_for_s,
        world_size=4,
        cause=cause,  # type: ignore[arg-type]
    )


def test_a_stall_that_passes_costs_what_it_lasted_on_every_rank() -> None:
    stalls = Stalls()
    stalls.take(verdict("suspect", 5), 0)
    stalls.take(verdict("hang", 30), 25 * SECOND)
    stalls.take(verdict("recovered", 900), 895 * SECOND)
    (stall,) = stalls.ended(2000 * SECOND)
    assert (stall.verdict, stall.seconds, stall.rank_hours) == ("hang", 900, 1.0)
    assert stall.explained


def test_a_stall_that_stands_lasts_to_the_end() -> None:
    stalls = Stalls()
    stalls.take(verdict("hang", 30, "unknown"), 100 * SECOND)
    (stall,) = stalls.ended(150 * SECOND)
    assert (stall.seconds, stall.explained) == (80, False)


def test_the_aftermath_of_a_stall_is_no_other_stall_and_not_its_beginning() -> None:
    stalls = Stalls()
    stalls.take(verdict("hang", 30), 100 * SECOND)
    stalls.take(verdict("hang", 30), 200 * SECOND)
    (stall,) = stalls.ended(210 * SECOND)
    assert stall.seconds == 140


def test_the_end_of_a_round_ends_its_stall() -> None:
    stalls = Stalls()
    stalls.take(verdict("dead", 10), 100 * SECOND)
    stalls.take(verdict("crashed", 0), 105 * SECOND)
    (stall,) = stalls.ended(900 * SECOND)
    assert (stall.verdict, stall.seconds) == ("dead", 15)
