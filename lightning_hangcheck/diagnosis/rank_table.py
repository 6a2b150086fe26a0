"""The verdict's table of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.verdict import LastCheckpoint, RankState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lightning_hangcheck.diagnosis.activity import Activity
    from lightning_hangcheck.diagnosis.scene import RankReading, Scene
    from lightning_hangcheck.model.beat import Beat, OpenSection
    from lightning_hangcheck.model.verdict import State

MOST_ROWS = 1_024
STATES: dict[Activity, State] = {
    "moving": "running",
    "busy": "running",
    "idle": "running",
    "waiting": "waiting",
    "stopped": "stopped",
    "gone": "gone",
    "missing": "missing",
    "unseen": "unseen",
}


def rank_table(
    scene: Scene, culprits: Collection[int], groups: Mapping[int, int]
) -> tuple[RankState, ...]:
    """Return every rank; above 1,024 only culprits and one rank of each stack group.

    Args:
        scene: All ranks.
        culprits: Those that a verdict blames; idle or busy, they count as stalled.
        groups: Stack group of each rank that has one.
    """
    blamed = set(culprits)
    shown: Iterable[RankReading] = scene.ranks.values()
    if len(scene.ranks) > MOST_ROWS:
        examples = {group: rank for rank, group in sorted(groups.items(), reverse=True)}
        kept = blamed | set(examples.values())
        shown = [reading for reading in shown if reading.rank in kept]
    return tuple(_row(reading, blamed, groups.get(reading.rank)) for reading in shown)


def _row(reading: RankReading, blamed: Collection[int], group: int | None) -> RankState:
    view, beat = reading.view, reading.view.beat
    mark = beat.checkpoint if beat is not None else None
    stalled = reading.rank in blamed and reading.activity in ("idle", "busy", "waiting")
    return RankState(
        rank=reading.rank,
        local_rank=view.local_rank,
        host=view.host,
        pid=view.pid,
        state="stalled" if stalled else STATES[reading.activity],
        phase=reading.phase,
        last_checkpoint=LastCheckpoint(mark.number, mark.name, mark.at) if mark else None,
        open_sections=tuple(map(str, _sections(beat))) if beat is not None else (),
        step=beat.step if beat is not None else None,
        stack_group=group,
    )


def _sections(beat: Beat) -> list[OpenSection]:
    """Oldest first, those of the main thread last: that is where the rank is."""
    return sorted(beat.sections, key=lambda section: section.in_main_thread)
