"""From one observation of a job to its case, and how long each rank was silent."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.attach.job_search import FoundJob
from lightning_hangcheck.attach.recorded_session import Watch, history, stale_notes
from lightning_hangcheck.judge.activity import read_rank_activity
from lightning_hangcheck.judge.frames import COLLECTIVE
from lightning_hangcheck.judge.joining import complete_case
from lightning_hangcheck.machine import which_machine
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Case, CodeNote, Limits, ProcessExit, RankView, RunFacts
from lightning_hangcheck.model.evidence import Gap, ProcessLook
from lightning_hangcheck.model.flight import FlightRecord
from lightning_hangcheck.text.shown import NANOSECONDS, before

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lightning_hangcheck.observe.discovery import FoundRank
    from lightning_hangcheck.observe.run_record import RankNote


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


YOUNG_S = 15.0
"""Age until which a job may still be starting its ranks."""


class Observation(Struct, frozen=True, kw_only=True):
    """What `hangcheck attach` saw of a job.

    Attributes:
        job: The ranks that were there when we came.
        looks: At the processes of each rank.
        slept: By process id, how long each rank had slept when we came, seconds.
        exits: Of ranks that ended while we looked.
        beats: By process id, what ranks that record say of themselves.
        flights: By rank, what torch recorded in those that answer for it.
        watch: Who watches the job, or did, and what it knows; None where nobody does.
        watched_s: From the first look to the last.
        ages_s: Of the ranks' processes, in the job's order.
        code: What the source says around the lines on which the ranks stand.
        taken_at: When the last look was over, ISO 8601 UTC.
        taken_ns: The same moment on the monotonic clock.
    """

    job: FoundJob
    looks: dict[int, tuple[ProcessLook, ...]]
    slept: dict[int, float | None]
    exits: dict[int, ProcessExit]
    beats: dict[int, Beat]
    flights: dict[int, FlightRecord]
    watch: Watch | None
    gaps: tuple[Gap, ...]
    code: tuple[CodeNote, ...]
    limits: Limits
    watched_s: float
    ages_s: tuple[float, ...]
    command: str
    host: str
    taken_at: str
    taken_ns: int


def attached_case(seen: Observation, run_id: str) -> Case:
    """Build the case that is judged and saved.

    Args:
        seen: What was seen.
        run_id: Name of the run folder.
    """
    watched, unwatched = _history(seen)
    views = with_silences(
        [_view(found, seen) for found in seen.job.ranks],
        seen.watched_s,
        seen.limits,
        seen.taken_ns,
        watched,
    )
    case = Case(
        run=_facts(seen, run_id),
        ranks=tuple(views),
        gaps=(*seen.gaps, *unwatched, *unknown_sleep(views, watched)),
        code=seen.code,
        limits=where_nobody_moves(seen.limits, views, watched),
        taken_at=seen.taken_at,
        taken_ns=seen.taken_ns,
        seen_in="attach",
    )
    return _with_absent(complete_case(case), min(seen.ages_s, default=0.0))


def _history(seen: Observation) -> tuple[dict[int, RankNote], tuple[Gap, ...]]:
    """What a sidecar knew of the ranks before we came, and what of it does not count."""
    if seen.watch is None:
        return {}, ()
    notes = seen.watch.notes
    if notes is None:
        return {}, seen.watch.gaps
    asleep = {pid: slept + seen.watched_s for pid, slept in seen.slept.items() if slept is not None}
    known = history(notes, seen.job.ranks, asleep, seen.taken_ns)
    return known, stale_notes(notes, seen.taken_ns)


def _view(found: FoundRank, seen: Observation) -> RankView:
    slept = seen.slept.get(found.pid)
    beat = seen.beats.get(found.pid)
    process_exit = seen.exits.get(found.rank)
    if process_exit is not None and beat is not None:
        process_exit = replace(process_exit, last_words=beat.last_words)
    return RankView(
        rank=found.rank,
        local_rank=found.local_rank,
        host=seen.host,
        pid=found.pid,
        store_port=found.store_port,
        beat=beat,
        slept_for_s=None if slept is None else round(slept, 3),
        processes=seen.looks.get(found.rank, ()),
        process_exit=process_exit,
        flight=seen.flights.get(found.rank),
    )


def _facts(seen: Observation, run_id: str) -> RunFacts:
    ranks = seen.job.ranks
    local = max((one.local_world_size or 0 for one in ranks), default=0)
    return RunFacts(
        run_id=run_id,
        command=seen.command,
        started_at=before(seen.taken_at, max(seen.ages_s, default=0.0)),
        world_size=seen.job.world_size,
        nnodes=max(1, -(-seen.job.world_size // local)) if local else 1,
        local_world_size=local or None,
        one_by_one=any(one.one_by_one for one in ranks),
        machine=which_machine(),
    )


def _with_absent(case: Case, age_s: float) -> Case:
    """Missing ranks: gone where others are in a collective, unknown in a young job."""
    absent = [view.rank for view in case.ranks if view.pid is None]
    if not absent:
        return case
    if _have_met(case.ranks):
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
    return replace(
        case,
        ranks=tuple(view for view in case.ranks if view.pid is not None),
        gaps=(*case.gaps, *gaps),
    )


def _have_met(views: Iterable[RankView]) -> bool:
    """Whether a rank stands in a collective: then the process group had formed, of all ranks."""
    waits = (read_rank_activity(view).wait for view in views)
    return any(wait is not None and wait.kind in COLLECTIVE for wait in waits)
