"""For how long each rank of a job was silent that nobody watched, and with how much patience.

And a job that works in silence: what it prints may still be in its own buffer.
"""

from __future__ import annotations

import math
import stat
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.judge.activity import Activity, describe_gpus, read_rank_activity
from lightning_hangcheck.judge.frames import COLLECTIVE
from lightning_hangcheck.judge.wording import duration, name_ranks, verb
from lightning_hangcheck.look.proc import command_line, read_environment
from lightning_hangcheck.machine import VARIABLE, is_unbuffered, kept_back_in
from lightning_hangcheck.model.case import Case, Limits, ProcessExit, RankView
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.verdict import Verdict
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


# What a job prints

SILENT_AFTER_S = 10.0
"""A log that has grown since tells enough; Lightning's bar is drawn several times a second."""
STORAGE_LIMIT_S = 1.0
MOST_RANKS = 8
"""Ranks that are looked at, 2 ms each: those of one machine print to one place."""


def kept_output(case: Case, verdict: Verdict) -> str | None:
    """Say that a job works though its log may be silent, and how its lines come at once.

    None where no rank was seen to work, its output is not kept back, or its file has just grown.
    """
    if verdict.verdict not in ("healthy", "slow"):
        return None
    seen = [(view, read_rank_activity(view)) for view in case.ranks]
    works = [(view, found) for view, found in seen if found.activity in ("moving", "busy")]
    try:
        known = [(*work, _why_silent(work[0].pid)) for work in works[:MOST_RANKS]]
    except NoAnswerFromStorage:
        return None
    silent = [(view, activity, kept) for view, activity, kept in known if kept is not None]
    if not silent:
        return None
    first, activity, (place, why) = silent[0]
    names = [view.rank for view, _, kept in silent if kept[0] == place]
    own = first.own_process
    use = [f"{activity.process_activity.cpu_share:.2f} of a core"]
    use += describe_gpus(own) if own is not None else ()
    return (
        f"{name_ranks(names)} {verb(names, 'works', 'work')} ({'; '.join(use)}), and what is "
        f"printed may still be in {verb(names, 'its', 'their')} buffer: {why}; next time: "
        f"{VARIABLE}=1, python -u, or print(..., flush=True)"
    )


def _why_silent(pid: int | None) -> tuple[str, str] | None:
    """Return what keeps the lines of a process back, and the sentence on it; None if nothing.

    A pipe does not tell when it was written to last: only a file proves its silence.
    """
    if pid is None:
        return None
    environment, command = read_environment(pid), command_line(pid)
    if isinstance(environment, Gap) or isinstance(command, Gap):
        return None
    if is_unbuffered(environment, command):
        return None
    try:
        status = apart(STORAGE_LIMIT_S, Path(f"/proc/{pid}/fd/1").stat)  # its standard output
    except OSError:
        return None
    place = kept_back_in(status.st_mode)
    if place is None:
        return None
    if not stat.S_ISREG(status.st_mode):
        unset = f"standard output is {place} and {VARIABLE} is not set"
        return place, f"{unset}, so if the log is silent, that may be why"
    silent_for_s = time.time() - status.st_mtime
    if silent_for_s < SILENT_AFTER_S:
        return None
    grown = f"standard output is {place} that has not grown for {duration(silent_for_s)}"
    return place, f"{grown}, and {VARIABLE} is not set"
