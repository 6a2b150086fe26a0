"""How long has a rank been silent that nobody watched? Pure: from what the kernel remembers.

Attaching, we see two seconds. The kernel adds how long each main thread had slept when we came, and
that is the whole history. The patience table of the contract is then asked as ever:

- a rank that stands still has been idle for as long as its main thread slept;
- a rank that waits in a collective has waited for as long as it slept, and the rank that it waits
  for has not come for that long: that is this one's silence, whatever it does;
- one that polls wakes now and then, so its own sleep says little. The waiting of others is enough
  to suspect it, and to call it hung once that is longer than any silence that is borne;
- one that computes may be at a long computation: the waiting of others counts only from the time
  from which a busy rank may be suspected;
- one that records has said when it last progressed: it has not been silent for longer than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.activity import doing
from lightning_hangcheck.diagnosis.patience import STRANGE_PLACE_S
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.case import Limits, RankView


def with_silences(
    views: Sequence[RankView], watched_s: float, limits: Limits, now_ns: int
) -> tuple[RankView, ...]:
    """Fill in for how long each rank has been silent, and idle.

    Args:
        views: With all their samples, and with ``slept_for_s``.
        watched_s: Seconds from the first look to the last.
        limits: In force.
        now_ns: Monotonic, when the last look was over.
    """
    awaited_s = max((view.slept_for_s or 0.0 for view in views if _waits(view)), default=0.0)
    silent = (_with_silence(view, watched_s, awaited_s, limits) for view in views)
    return tuple(_since_its_beat(view, now_ns) for view in silent)


def unknown_sleep(views: Sequence[RankView]) -> tuple[Gap, ...]:
    """Say of which ranks the kernel did not tell for how long they had slept."""
    return tuple(
        Gap(
            what=f"how long rank {view.rank} had been idle before",
            rank=view.rank,
            why="the kernel does not show it (/proc/PID/sched); compare with a visit in a minute",
        )
        for view in views
        if view.slept_for_s is None and view.departure is None
    )


def _waits(view: RankView) -> bool:
    return doing(view).activity == "waiting"


def _with_silence(view: RankView, watched_s: float, awaited_s: float, limits: Limits) -> RankView:
    activity = doing(view).activity
    own_s = max(watched_s, view.slept_for_s or 0.0)
    if activity == "waiting":
        return _silent(view, own_s, own_s)
    if activity == "moving":
        return _silent(view, awaited_s, 0.0)
    if activity == "busy":
        return _silent(view, awaited_s if awaited_s >= limits.busy_floor else 0.0, 0.0)
    longest_s = max(own_s, awaited_s)
    if own_s >= limits.idle_after:
        return _silent(view, longest_s, own_s)
    polls_s = awaited_s if awaited_s >= limits.stall_timeout else min(awaited_s, STRANGE_PLACE_S)
    return _silent(view, longest_s, max(own_s, polls_s))


def _since_its_beat(view: RankView, now_ns: int) -> RankView:
    if view.beat is None or not view.beat.beats or view.departure is not None:
        return view
    since_s = max(0.0, (now_ns - view.beat.last_beat_ns) / 1e9)
    return _silent(view, min(view.silent_for_s, since_s), min(view.idle_for_s, since_s))


def _silent(view: RankView, silent_s: float, idle_s: float) -> RankView:
    return replace(view, silent_for_s=round(silent_s, 3), idle_for_s=round(idle_s, 3))
