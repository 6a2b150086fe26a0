"""What a restart would throw away: the work since the last checkpoint that ended well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.ledger.spending import rank_hours
from lightning_hangcheck.reading.wording import duration, hours_of_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.case import Case, RankView


def lost_progress(case: Case) -> str:
    """Say what ends with the job, in one sentence.

    ``last checkpoint step 10; 2 steps, 90 s, 0.05 rank hours are lost``. The time is that in which
    ranks advanced, without the silence since. Where only some ranks save, the newest save counts.

    Args:
        case: Of a job that ended, or will have to be.

    Returns:
        Empty where no rank shows steps or saves: then nothing is known of them.
    """
    seen = [view for view in case.ranks if view.beat is not None and view.spent is not None]
    saving = [view for view in seen if _saves(view)]
    reached = max((_step(view) for view in seen), default=0)
    if not saving and not reached:
        return ""
    kept = max(saving or seen, key=_saved_step)
    told = _checkpoint(kept) if saving else "no save of a checkpoint was seen"
    steps = reached - _saved_step(kept)
    if saving and reached and steps <= 0:
        return f"{told}; nothing is lost"
    lost = ", ".join((*_steps(steps), *_time(case, kept, seen)))
    return f"{told}; {lost} are lost" if lost else told


def _saves(view: RankView) -> bool:
    return view.beat is not None and view.beat.save is not None


def _step(view: RankView) -> int:
    return (view.beat.step or 0) if view.beat is not None else 0


def _saved_step(view: RankView) -> int:
    save = view.beat.save if view.beat is not None else None
    return (save.step or 0) if save is not None else 0


def _checkpoint(view: RankView) -> str:
    save = view.beat.save if view.beat is not None else None
    if save is None or save.step is None:
        return "last checkpoint of unknown step"
    return f"last checkpoint step {save.step}"


def _steps(count: int) -> tuple[str, ...]:
    if count <= 0:
        return ()
    return (f"{count} step{'s' if count > 1 else ''}",)


def _time(case: Case, kept: RankView, seen: Sequence[RankView]) -> tuple[str, ...]:
    since_s = kept.spent.unsaved_s if kept.spent is not None else None
    if since_s is None:
        return ()
    seconds = max(0.0, since_s - min(view.silent_for_s for view in seen))
    hours = rank_hours(max(case.run.world_size, len(case.ranks)), seconds)
    return duration(seconds), f"{hours_of_ranks(hours)} rank hours"
