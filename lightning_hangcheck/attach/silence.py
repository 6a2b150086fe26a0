"""For how long each rank of a job was silent that nobody watched, and with how much patience."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.activity import Activity, read_rank_activity
from lightning_hangcheck.judge.frames import COLLECTIVE
from lightning_hangcheck.model.case import Case, Limits, ProcessExit, RankView
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    (``watched``) is up to now. No rank was silent for longer than since the last beat of its page.
    """
    known: list[tuple[RankView, Activity, float, float]] = []
    awaited_s = 0.0
    for view in views:
        note, beat, since_s = watched.get(view.rank), view.beat, math.inf
        if view.process_exit is None:
            if beat is not None and beat.beats:
                since_s = max(0.0, (now_ns - beat.last_beat_ns) / NANOSECONDS)
            told_s = since_s if since_s < math.inf else 0.0
            view = replace(
                view,
                silent_for_s=told_s if note is None else note.silent_for_s,
                idle_for_s=0.0 if note is None else note.idle_for_s,
                nothing_new_for_s=0.0 if note is None else note.circling_for_s,
                pace=view.pace if note is None else note.pace,
            )
        activity = read_rank_activity(view).activity
        # for how long its main thread, or all of it, has not used the processor
        still_s = max(view.slept_for_s or 0.0, view.idle_for_s)
        awaited_s = max(awaited_s, still_s) if activity == "waiting" else awaited_s
        known.append((view, activity, still_s, since_s))
    found = []
    for view, activity, still_s, since_s in known:
        idle_s = own_s = max(watched_s, still_s)
        silent_s = max(own_s, view.silent_for_s)
        if activity == "moving":
            silent_s, idle_s = awaited_s, 0.0
        elif activity == "busy":
            silent_s, idle_s = max(awaited_s, view.silent_for_s), 0.0
            if view.rank not in watched and silent_s < limits.suspect_busy_after:
                silent_s = 0.0
        elif activity != "waiting":
            if own_s < limits.idle_after:  # it may have come to this line just now
                polls_s = min(max(awaited_s, view.silent_for_s), limits.suspect_outside_after)
                idle_s = max(own_s, awaited_s if awaited_s >= limits.stall_timeout else polls_s)
            silent_s = max(silent_s, awaited_s)
        view = replace(
            view,
            silent_for_s=round(min(silent_s, since_s), 3),
            idle_for_s=round(min(idle_s, since_s), 3),
            nothing_new_for_s=round(min(view.nothing_new_for_s, since_s), 3),
        )
        found.append(view)
    return tuple(found)


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
    activities = {read_rank_activity(view).activity for view in views}
    if watched or not stands_still(views) or "waiting" not in activities:
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
