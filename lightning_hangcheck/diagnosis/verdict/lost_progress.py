"""What a restart would throw away: the work since the last checkpoint that ended well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.ledger.spending import rank_hours
from lightning_hangcheck.reading.wording import duration, hours_of_ranks
from lightning_hangcheck.text.amounts import several

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
    kept = max(saving or seen, key=lambda view: _saved_step(view) or 0)
    saved = _saved_step(kept)
    if saving and reached and saved is not None and saved >= reached:
        return f"last checkpoint step {saved}; nothing is lost"
    steps = (several(reached - saved, "step"),) if reached and saved is not None else ()
    lost = ", ".join((*steps, *_time(case, kept, seen)))
    shown = f"last checkpoint step {'unknown' if saved is None else saved}"
    told = shown if saving else "no save of a checkpoint was seen"
    return f"{told}; {lost} are lost" if lost else told


def _saves(view: RankView) -> bool:
    return view.beat is not None and view.beat.save is not None


def _step(view: RankView) -> int:
    return (view.beat.step or 0) if view.beat is not None else 0


def _saved_step(view: RankView) -> int | None:
    """Steps that its last checkpoint holds; None where a rank that shows none has saved."""
    save = view.beat.save if view.beat is not None else None
    if save is None:
        return 0
    shows_steps = view.beat is not None and view.beat.step is not None
    return save.step if save.step is not None or not shows_steps else 0


def _time(case: Case, kept: RankView, seen: Sequence[RankView]) -> tuple[str, ...]:
    since_s = kept.spent.unsaved_s if kept.spent is not None else None
    if since_s is None:
        return ()
    seconds = max(0.0, since_s - min(view.silent_for_s for view in seen))
    hours = rank_hours(max(case.run.world_size, len(case.ranks)), seconds)
    return duration(seconds), f"{hours_of_ranks(hours)} rank hours"
