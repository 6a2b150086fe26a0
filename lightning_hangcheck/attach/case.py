"""From one observation of a job to its case. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.attach.job_grouping import FoundJob
from lightning_hangcheck.attach.recorded_session import Watch
from lightning_hangcheck.attach.silence import unknown_sleep, where_nobody_moves, with_silences
from lightning_hangcheck.attach.watched_history import history, stale_notes
from lightning_hangcheck.judge.activity import read_rank_activity
from lightning_hangcheck.judge.frames import COLLECTIVE
from lightning_hangcheck.judge.joining import complete_case
from lightning_hangcheck.machine.which_machine import which_machine
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Case, CodeNote, Limits, ProcessExit, RankView, RunFacts
from lightning_hangcheck.model.evidence import Gap, ProcessLook
from lightning_hangcheck.model.flight import FlightRecord
from lightning_hangcheck.text.moments import before

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.observe.discovery import FoundRank
    from lightning_hangcheck.observe.watch_notes import RankNote

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
