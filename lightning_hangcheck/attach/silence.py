"""For how long each rank of a job was silent that nobody watched, and with how much patience."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.activity import read_rank_activity
from lightning_hangcheck.judge.frames import COLLECTIVE
from lightning_hangcheck.model.case import Case, ProcessExit
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.case import Limits, RankView
    from lightning_hangcheck.observe.run_record import RankNote

PROVEN_AFTER_S = 1.0
"""What is proven is told at once, as nobody watched before; but not of a rank that says that it has
just progressed."""
VISIT_S = 2.0
"""Seconds from the first look of a visit to its last."""
WOKEN_S = 5.0
"""Sleep so short that a look of another tool may have begun it, where nobody does anything."""
YOUNG_S = 15.0
"""Age until which a job may still be starting its ranks."""
NOBODY_WATCHED: Mapping[int, RankNote] = MappingProxyType({})


def with_silences(
    views: Sequence[RankView],
    watched_s: float,
    limits: Limits,
    now_ns: int,
    watched: Mapping[int, RankNote] = NOBODY_WATCHED,
) -> tuple[RankView, ...]:
    """Fill in for how long each rank has been silent, and idle.

    Views come with all their samples and ``slept_for_s``; what a sidecar knows of ranks
    (``watched``) is up to now.
    """
    known = []
    for view in views:
        note = watched.get(view.rank)
        if view.process_exit is not None:
            known.append(view)
        elif note is None:
            fresh = replace(view, nothing_new_for_s=0.0)
            known.append(_silent(fresh, _since_beat_s(view, now_ns) or 0.0, 0.0))
        else:
            told = replace(view, nothing_new_for_s=round(note.circling_for_s, 3), pace=note.pace)
            known.append(_silent(told, note.silent_for_s, note.idle_for_s))
    awaited_s = max((_still_s(view) for view in known if _waits(view)), default=0.0)
    silent = []
    for view in known:
        one = _with_silence(view, watched_s, awaited_s, limits, paced=view.rank in watched)
        since_s = _since_beat_s(one, now_ns)
        if since_s is not None:
            one = _silent(one, min(one.silent_for_s, since_s), min(one.idle_for_s, since_s))
            one = replace(one, nothing_new_for_s=round(min(one.nothing_new_for_s, since_s), 3))
        silent.append(one)
    return tuple(silent)


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
    Where a sidecar watched, nothing is left to guess.
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
    """Say of which ranks nobody tells for how long they had slept."""
    longest_s = max((view.slept_for_s or 0.0 for view in views), default=0.0)
    woken = stands_still(views) and longest_s < WOKEN_S
    gaps = []
    for view in views:
        slept_s = view.slept_for_s
        if view.process_exit is not None or view.rank in watched:
            continue
        if slept_s is not None and not woken:
            continue
        why = "the kernel does not show it (/proc/PID/sched); compare with a visit in a minute"
        if slept_s is not None:
            why = (
                f"it last ran {slept_s:.1f} s before this visit; that may have been another tool's "
                "look (py-spy, gdb), which wakes it: visit again in half a minute, without one"
            )
        what = f"how long rank {view.rank} had been idle before"
        gaps.append(Gap(what, view.rank, why, "sleep"))
    return tuple(gaps)


def with_absent(case: Case, age_s: float) -> Case:
    """Missing ranks: gone where others are in a collective, unknown in a young job."""
    absent = [view.rank for view in case.ranks if view.pid is None]
    if not absent:
        return case
    waits = (read_rank_activity(view).wait for view in case.ranks)
    if any(wait is not None and wait.kind in COLLECTIVE for wait in waits):
        # the process group had formed, of all ranks
        gone = ProcessExit(order=0, at=case.taken_at)
        views = tuple(
            replace(view, process_exit=gone) if view.pid is None else view for view in case.ranks
        )
        return replace(case, ranks=views)
    if age_s >= YOUNG_S:
        return case
    gaps = (
        Gap(f"rank {rank}", rank, f"it has no process yet; the job is {age_s:.0f} s old", "rank")
        for rank in absent
    )
    there = tuple(view for view in case.ranks if view.pid is not None)
    return replace(case, ranks=there, gaps=(*case.gaps, *gaps))


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


def _since_beat_s(view: RankView, now_ns: int) -> float | None:
    """Seconds since the last sign of progress on its page; None where it does not beat."""
    if view.beat is None or not view.beat.beats or view.process_exit is not None:
        return None
    return max(0.0, (now_ns - view.beat.last_beat_ns) / NANOSECONDS)


def _silent(view: RankView, silent_s: float, idle_s: float) -> RankView:
    return replace(view, silent_for_s=round(silent_s, 3), idle_for_s=round(idle_s, 3))
