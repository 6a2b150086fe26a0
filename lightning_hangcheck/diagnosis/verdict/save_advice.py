"""How often a training should save, by how long it ran and how long its epochs took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.reading.wording import duration

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, Spent

SAVES_FROM_S = 600.0
LONG_FROM_S = 1800.0
EPOCHS = (10, 20)
EPOCHS_OF_LONG = (5, 10)
"""The rule of thumb of those for whom this was made: a run of up to 10 minutes may be repeated, a
longer one saves every 10 to 20 epochs, one of over 30 minutes every 5 to 10."""
SHORTEST_PAUSE_S = 60.0
"""The rule is one for epochs of a minute or so. Where it would mean a save more often than this, or
less often than every 30 minutes, its 10 to 30 minutes count instead."""


def save_advice(case: Case) -> str:
    """Say how often such a training should save, in epochs and in minutes.

    Args:
        case: Of a job that has ended.

    Returns:
        Empty where it was short, saved often enough, or showed no steps.
    """
    spent = [view.spent for view in case.ranks if view.spent is not None]
    saver = max(spent, key=lambda one: one.saves, default=None)
    if saver is None or saver.training_s <= SAVES_FROM_S:
        return ""
    longest_s, advice = _in_epochs(saver) or _in_minutes(saver)
    if saver.saves and saver.training_s / saver.saves <= max(longest_s, SAVES_FROM_S):
        return ""
    saves = f"{saver.saves or 'no'} save{'s' if saver.saves > 1 else ''}"
    return f"{saves} seen in {duration(saver.training_s)} of training; {advice}"


def _in_epochs(saver: Spent) -> tuple[float, str] | None:
    """The longest pause between saves, and the advice; None where epochs do not suit."""
    is_long = saver.training_s > LONG_FROM_S
    fewest, most = EPOCHS_OF_LONG if is_long else EPOCHS
    shortest_s, longest_s = fewest * (saver.epoch_s or 0.0), most * (saver.epoch_s or 0.0)
    if longest_s < SHORTEST_PAUSE_S or shortest_s > min(saver.training_s, LONG_FROM_S):
        return None
    limit = duration(LONG_FROM_S if is_long else SAVES_FROM_S)
    return longest_s, (
        f"over {limit} save every {fewest} to {most} epochs, here every {duration(shortest_s)} to "
        f"{duration(longest_s)}: ModelCheckpoint(every_n_epochs={fewest}), in transformers "
        f"save_steps={_steps_in(saver, shortest_s)}"
    )


def _in_minutes(saver: Spent) -> tuple[float, str]:
    steps = _steps_in(saver, SAVES_FROM_S)
    return LONG_FROM_S, (
        f"save every {duration(SAVES_FROM_S)} to {duration(LONG_FROM_S)}: "
        f"ModelCheckpoint(every_n_train_steps={steps}), in transformers save_steps={steps}"
    )


def _steps_in(saver: Spent, seconds: float) -> int:
    return max(1, round(saver.steps * seconds / saver.training_s))
