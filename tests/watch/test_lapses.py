"""A sidecar that was not run counts that time for nobody, and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.watch.lapses import Lapses

if TYPE_CHECKING:
    import pytest

SECOND = 1_000_000_000


def test_a_reading_in_time_is_no_lapse() -> None:
    lapses = Lapses(0)
    assert [lapses.read(moment * SECOND // 4, suspended=False) for moment in (1, 2, 6)] == [0] * 3
    assert lapses.gaps == ()


def test_a_starved_sidecar_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    lapses = Lapses(0)
    assert lapses.read(7 * SECOND, suspended=False) == 7 * SECOND
    (gap,) = lapses.gaps
    assert gap.what == "7 s of the job"
    assert "overloaded machine" in gap.why
    assert "overloaded machine" in capfd.readouterr().err


def test_a_job_that_somebody_stopped_is_no_starved_sidecar() -> None:
    lapses = Lapses(0)
    assert lapses.read(SECOND // 4, suspended=True) == SECOND // 4
    assert lapses.gaps == ()
