"""The silences of a run, and what each cost."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    ("told", "ended_s", "stall"),
    [
        # one that passes costs what it lasted on every rank
        ([("suspect", 5, 0), ("hang", 30, 25), ("recovered", 900, 895)], 2000, ("hang", 900)),
        # one that stands lasts to the end
        ([("hang", 30, 100)], 150, ("hang", 80)),
        # its aftermath is no other stall, and not its beginning
        ([("hang", 30, 100), ("hang", 30, 200)], 210, ("hang", 140)),
        # the end of a round ends it
        ([("dead", 10, 100), ("crashed", 0, 105)], 900, ("dead", 15)),
    ],
)
def test_a_stall_lasts_from_its_silence_to_what_ends_it(
    told: list[tuple[str, int, int]], ended_s: int, stall: tuple[str, int]
) -> None:
    stalls = Stalls()
    for kind, stalled_for_s, at_s in told:
        stalls.take(verdict(kind, stalled_for_s), at_s * SECOND)
    (found,) = stalls.ended(ended_s * SECOND)
    assert (found.verdict, found.seconds) == stall
    assert (found.rank_hours, found.explained) == (
        pytest.approx(stall[1] * 4 / 3600, abs=1e-6),
        True,
    )


def test_a_stall_of_unknown_cause_is_not_explained() -> None:
    stalls = Stalls()
    stalls.take(verdict("hang", 30, "unknown"), 100 * SECOND)
    assert [one.explained for one in stalls.ended(150 * SECOND)] == [False]
