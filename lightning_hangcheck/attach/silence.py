"""For how long has each rank been silent when we attach? Pure.

Attaching, we see two seconds. What came before is known from three sides, and the patience table of
the contract is then asked as ever:

- its page, where a rank beats: it has not been silent for longer than since its last beat;
- a sidecar's notes: it knows since when each rank has shown no progress;
- the kernel: how long each main thread had slept when we came. Looks of a sidecar, or of py-spy,
  wake a rank, so this may be short though the rank has been stuck for an hour.

The longest that sidecar and kernel know counts, and the page bounds it:

- a rank that stands still has been idle for as long as its main thread slept;
- a rank that waits in a collective has waited for as long as it slept, and the rank that it waits
  for has not come for that long: that is this one's silence, whatever it does;
- one that polls wakes now and then, so its own sleep says little. The waiting of others, or its
  own page, is enough to suspect it; the waiting, once longer than any silence that is borne, to
  call it hung;
- one that computes may be at a long computation: without a sidecar, which knows its pace, silence
  and the waiting of others count only from the time from which a busy rank may be suspected.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.activity import read_rank_activity
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.case import Limits, RankView
    from lightning_hangcheck.observe.watch_notes import RankNote

PROVEN_AFTER_S = 1.0
"""What is proven is told at once, as nobody watched before; but not of a rank that says that it has
just progressed."""
VISIT_S = 2.0
"""Seconds from the first look of a visit to its last."""
WOKEN_S = 5.0
"""Sleep so short that a look of another tool may have begun it, where nobody does anything."""
NOBODY_WATCHED: Mapping[int, RankNote] = MappingProxyType({})


def with_silences(
    views: Sequence[RankView],
    watched_s: float,
    limits: Limits,
    now_ns: int,
    watched: Mapping[int, RankNote] = NOBODY_WATCHED,
) -> tuple[RankView, ...]:
    """Fill in for how long each rank has been silent, and idle.

    Args:
        views: With all their samples, and with ``slept_for_s``.
        watched_s: Seconds from the first look to the last.
        limits: In force.
        now_ns: Monotonic, when the last look was over.
        watched: By rank, what a sidecar knows of it up to now.
    """
    known = [_as_known(view, watched.get(view.rank), now_ns) for view in views]
    awaited_s = max((_still_s(view) for view in known if _waits(view)), default=0.0)
    return tuple(
        _since_its_beat(
            _with_silence(view, watched_s, awaited_s, limits, paced=view.rank in watched), now_ns
        )
        for view in known
    )


def of_a_visit(limits: Limits) -> Limits:
    """Return the patience of one that was not there before: it tells at once what cannot end."""
    at_once = ("suspect_proven_after", "proven_after", "suspect_person_after", "person_after")
    shorter = {name: min(getattr(limits, name), PROVEN_AFTER_S) for name in at_once}
    return replace(limits, **shorter)


def where_nobody_moves(
    limits: Limits, views: Sequence[RankView], watched: Mapping[int, RankNote]
) -> Limits:
    """Return the patience with a job in which, all the visit long, nobody did anything.

    A look of another tool wakes a rank that has been stuck for an hour, and the kernel remembers no
    more than that. So while others wait, one that stands still for a whole visit is suspected.

    Args:
        limits: In force.
        views: All ranks, with their silences.
        watched: By rank, what a sidecar knows of it: where one does, nothing is left to guess.
    """
    if watched or not stands_still(views) or not any(map(_waits, views)):
        return limits
    shorter = ("suspect_idle_after", "suspect_outside_after")
    return replace(limits, **{name: min(getattr(limits, name), VISIT_S) for name in shorter})


def stands_still(views: Sequence[RankView]) -> bool:
    """Whether no rank that has a process does anything."""
    alive = [view for view in views if view.pid is not None and view.process_exit is None]
    activities = {read_rank_activity(view).activity for view in alive}
    return bool(alive) and activities <= {"idle", "waiting", "stopped"}


def unknown_sleep(
    views: Sequence[RankView], watched: Mapping[int, RankNote] = NOBODY_WATCHED
) -> tuple[Gap, ...]:
    """Say of which ranks nobody tells for how long they had slept.

    Args:
        views: With ``slept_for_s``.
        watched: By rank, what a sidecar knows of it.
    """
    longest_s = max((view.slept_for_s or 0.0 for view in views), default=0.0)
    woken = stands_still(views) and longest_s < WOKEN_S
    return tuple(
        Gap(f"how long rank {view.rank} had been idle before", view.rank, why, "sleep")
        for view in views
        if view.process_exit is None
        and view.rank not in watched
        and (why := _untold(view.slept_for_s, woken=woken))
    )


def _untold(slept_s: float | None, *, woken: bool) -> str:
    if slept_s is None:
        return "the kernel does not show it (/proc/PID/sched); compare with a visit in a minute"
    if not woken:
        return ""
    return (
        f"it last ran {slept_s:.1f} s before this visit; that may have been another tool's look "
        "(py-spy, gdb), which wakes it: visit again in half a minute, without one"
    )


def _as_known(view: RankView, note: RankNote | None, now_ns: int) -> RankView:
    """Fill in what its page and a sidecar say, before anything that we saw."""
    if view.process_exit is not None:
        return view
    if note is None:
        return _silent(view, _since_beat_s(view, now_ns) or 0.0, 0.0)
    return replace(
        _silent(view, note.silent_for_s, note.idle_for_s),
        nothing_new_for_s=round(note.circling_for_s, 3),
        pace=note.pace,
    )


def _still_s(view: RankView) -> float:
    """For how long its main thread, or all of it, has not used the processor."""
    return max(view.slept_for_s or 0.0, view.idle_for_s)


def _waits(view: RankView) -> bool:
    return read_rank_activity(view).activity == "waiting"


def _with_silence(
    view: RankView, watched_s: float, awaited_s: float, limits: Limits, *, paced: bool
) -> RankView:
    activity = read_rank_activity(view).activity
    own_s = max(watched_s, _still_s(view))
    silent_s = max(own_s, view.silent_for_s)
    if activity == "waiting":
        return _silent(view, silent_s, own_s)
    if activity == "moving":
        return _silent(view, awaited_s, 0.0)
    if activity == "busy":
        longest_s = max(awaited_s, view.silent_for_s)
        counts = paced or longest_s >= limits.suspect_busy_after
        return _silent(view, longest_s if counts else 0.0, 0.0)
    longest_s = max(silent_s, awaited_s)
    if own_s >= limits.idle_after:
        return _silent(view, longest_s, own_s)
    suspect_s = min(max(awaited_s, view.silent_for_s), limits.suspect_outside_after)
    polls_s = awaited_s if awaited_s >= limits.stall_timeout else suspect_s
    return _silent(view, longest_s, max(own_s, polls_s))


def _since_its_beat(view: RankView, now_ns: int) -> RankView:
    since_s = _since_beat_s(view, now_ns)
    if since_s is None:
        return view
    return replace(
        _silent(view, min(view.silent_for_s, since_s), min(view.idle_for_s, since_s)),
        nothing_new_for_s=round(min(view.nothing_new_for_s, since_s), 3),
    )


def _since_beat_s(view: RankView, now_ns: int) -> float | None:
    """Seconds since the last sign of progress on its page; None where it does not beat."""
    if view.beat is None or not view.beat.beats or view.process_exit is not None:
        return None
    return max(0.0, (now_ns - view.beat.last_beat_ns) / NANOSECONDS)


def _silent(view: RankView, silent_s: float, idle_s: float) -> RankView:
    return replace(view, silent_for_s=round(silent_s, 3), idle_for_s=round(idle_s, 3))
