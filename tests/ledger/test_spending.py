"""Where a rank's time goes, its silences, what a restart throws away, and what an hour costs."""

from __future__ import annotations

import pytest

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.ledger.spending import Spending, Stalls, read_prices
from lightning_hangcheck.model.beat import Beat, SaveMark
from lightning_hangcheck.model.case import PhaseTime
from lightning_hangcheck.model.verdict import Verdict

SECOND = 1_000_000_000


def read(
    spending: Spending, at_s: float, phase: str, step: int, save: SaveMark | None = None
) -> None:
    beat = Beat(pid=1, phase=phase, step=step, save=save)  # type: ignore[arg-type]
    spending.read(beat, int(at_s * SECOND))


def test_time_goes_to_the_phase_that_a_rank_shows() -> None:
    spending = Spending()
    for at_s, phase in ((0, "dataloading"), (1, "dataloading"), (4, "backward"), (6, "backward")):
        read(spending, at_s, phase, 0)
    assert spending.spent().phases == (PhaseTime("backward", 5.0), PhaseTime("dataloading", 1.0))


def test_steps_since_the_last_save_are_what_a_restart_loses() -> None:
    spending = Spending()
    read(spending, 0, "training_step", 10)
    assert spending.spent().steps_unsaved == 10
    assert (spending.spent().saves, spending.spent().last_save_at) == (0, None)
    read(spending, 3, "training_step", 14, SaveMark(2, "at 2", 11))
    assert spending.spent().steps_unsaved == 3
    assert (spending.spent().saves, spending.spent().last_save_at) == (2, "at 2")


def test_steps_that_a_loaded_checkpoint_holds_are_not_lost() -> None:
    spending = Spending()
    read(spending, 3, "training_step", 104, SaveMark(0, "at 1", 100))
    spent = spending.spent()
    assert (spent.steps_unsaved, spent.saves, spent.last_save_at) == (4, 0, None)


def test_a_rank_that_only_shows_that_it_saves_has_not_saved() -> None:
    spending = Spending()
    read(spending, 1, "checkpoint_save", 10)
    read(spending, 2, "training_step", 11)
    assert spending.spent().steps_unsaved == 11
    assert spending.spent().saves == 0


def test_work_is_unsaved_from_the_first_step_and_then_from_each_save() -> None:
    spending = Spending()
    spending.read(Beat(pid=1), 0)
    assert spending.spent().unsaved_s is None
    read(spending, 5, "training_step", 1)
    read(spending, 9, "training_step", 8)
    assert spending.spent().unsaved_s == 4.0
    for at_s, step in ((10, 9), (12, 12)):
        read(spending, at_s, "training_step", step, SaveMark(1, "at 9", 9))
    assert spending.spent().unsaved_s == 2.0


def test_what_was_saved_before_anybody_looked_was_saved_at_an_unknown_moment() -> None:
    spending = Spending()
    for at_s in (5, 9):
        read(spending, at_s, "training_step", at_s, SaveMark(1, "at 2", 2))
    assert spending.spent().unsaved_s is None


def test_epochs_are_measured_from_one_change_of_their_number_to_another() -> None:
    spending = Spending()
    for at_s, epoch, step in (
        (0, 0, 0),
        (4, 0, 2),
        (10, 1, 5),
        (30, 2, 15),
        (50, 3, 25),
        (55, 3, 25),
    ):
        spending.read(Beat(pid=1, epoch=epoch, step=step), at_s * SECOND)
    spent = spending.spent()
    assert (spent.epoch_s, spent.training_s, spent.steps) == (20.0, 50.0, 25)


def test_steps_of_a_checkpoint_that_is_loaded_were_not_made_here() -> None:
    spending, loaded = Spending(), SaveMark(0, "at 2", 1000)
    for at_s, step, save in ((0, 0, None), (2, 0, loaded), (3, 1000, loaded), (13, 1020, loaded)):
        spending.read(Beat(pid=1, step=step, save=save), at_s * SECOND)
    assert (spending.spent().steps, spending.spent().training_s) == (20, 10.0)


def test_an_epoch_that_was_not_seen_whole_has_no_duration() -> None:
    spending = Spending()
    for at_s, epoch in ((0, 3), (5, 3), (10, 4), (30, 0), (31, 0)):
        spending.read(Beat(pid=1, epoch=epoch), at_s * SECOND)
    assert spending.spent().epoch_s is None, "another training began"


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


def test_the_price_of_a_model_comes_before_that_of_all_others() -> None:
    prices = read_prices(["0.89/h", "a100=1.89/h, H100=2.99"])
    assert prices.cost(["NVIDIA A100-SXM4-80GB"], 2, 1800) == pytest.approx(1.89)
    assert prices.cost(["NVIDIA H100"], 1, 3600) == pytest.approx(2.99)
    assert prices.cost([], 1, 3600) == pytest.approx(0.89)


def test_without_a_price_nothing_is_made_up() -> None:
    assert read_prices(["A100=1.89/h"]).cost(["NVIDIA L4"], 1, 3600) is None
    assert read_prices([""]).cost([], 1, 3600) is None


@pytest.mark.parametrize("text", ["cheap", "-1/h", "nan", "=0.5", "A100=", "0.5/d"])
def test_what_is_no_price_is_one_sentence(text: str) -> None:
    with pytest.raises(BadUsage, match="is not a price per hour; write for example"):
        read_prices([text])
