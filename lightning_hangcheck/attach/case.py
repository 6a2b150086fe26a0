"""From one visit to a job to its case. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.attach.job_grouping import FoundJob
from lightning_hangcheck.attach.offer import Watch
from lightning_hangcheck.attach.silence import unknown_sleep, with_silences
from lightning_hangcheck.attach.watched_history import history, stale_notes
from lightning_hangcheck.diagnosis.rules.patience import STRANGE_PLACE_S
from lightning_hangcheck.gather.case_building import build_case
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Case, CodeNote, Limits, ProcessExit, RankView, RunFacts
from lightning_hangcheck.model.evidence import Gap, ProcessLook
from lightning_hangcheck.model.flight import FlightRecord
from lightning_hangcheck.reading.rank_activity import read_rank_activity
from lightning_hangcheck.reading.torch_waits import COLLECTIVE
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
        departures: Of ranks that ended while we looked.
        beats: By process id, what ranks that record say of themselves.
        flights: By rank, what torch recorded in those that answer for it.
        watch: Who watches the job, or did, and what it knows; None where nobody does.
        watched_s: From the first look to the last.
        ages_s: Of the ranks' processes, in the job's order.
        code: What the source says around the lines on which the ranks stand.
        left_at: When the last look was over, ISO 8601 UTC.
        left_ns: The same moment on the monotonic clock.
    """

    job: FoundJob
    looks: dict[int, tuple[ProcessLook, ...]]
    slept: dict[int, float | None]
    departures: dict[int, ProcessExit]
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
    left_at: str
    left_ns: int


def attached_case(visit: Observation, run_id: str) -> Case:
    """Build the case that is judged and saved.

    Args:
        visit: What was seen.
        run_id: Name of the run folder.
    """
    watched, unwatched = _history(visit)
    views = with_silences(
        [_view(found, visit) for found in visit.job.ranks],
        visit.watched_s,
        visit.limits,
        visit.left_ns,
        watched,
    )
    case = build_case(
        run=_facts(visit, run_id),
        ranks=views,
        gaps=(*visit.gaps, *unwatched, *unknown_sleep(views, visit.watched_s, watched)),
        code=visit.code,
        limits=visit.limits,
        taken_at=visit.left_at,
        taken_ns=visit.left_ns,
    )
    return _with_absent(case, min(visit.ages_s, default=0.0))


def undecided(case: Case) -> bool:
    """Whether a longer look would tell more: somebody waits, nobody advances, and not yet for long.

    A look of another tool wakes a rank that has been stuck for an hour; a rank that really arrived
    a moment ago goes on meanwhile.
    """
    alive = [view for view in case.ranks if view.pid is not None and view.process_exit is None]
    activities = {read_rank_activity(view).activity for view in alive}
    longest_s = max((view.silent_for_s for view in alive), default=0.0)
    still = "waiting" in activities and not activities & {"moving", "busy"}
    return still and longest_s < STRANGE_PLACE_S


def _history(visit: Observation) -> tuple[dict[int, RankNote], tuple[Gap, ...]]:
    """What a watcher knew of the ranks before we came, and what of it does not count."""
    if visit.watch is None:
        return {}, ()
    notes = visit.watch.notes
    if notes is None:
        return {}, visit.watch.gaps
    asleep = {
        pid: slept + visit.watched_s for pid, slept in visit.slept.items() if slept is not None
    }
    known = history(notes, visit.job.ranks, asleep, visit.left_ns)
    return known, stale_notes(notes, visit.left_ns)


def _view(found: FoundRank, visit: Observation) -> RankView:
    slept = visit.slept.get(found.pid)
    beat = visit.beats.get(found.pid)
    departure = visit.departures.get(found.rank)
    if departure is not None and beat is not None:
        departure = replace(departure, last_words=beat.last_words)
    return RankView(
        rank=found.rank,
        local_rank=found.local_rank,
        host=visit.host,
        pid=found.pid,
        beat=beat,
        slept_for_s=None if slept is None else round(slept, 3),
        processes=visit.looks.get(found.rank, ()),
        process_exit=departure,
        flight=visit.flights.get(found.rank),
    )


def _facts(visit: Observation, run_id: str) -> RunFacts:
    ranks = visit.job.ranks
    local = max((one.local_world_size or 0 for one in ranks), default=0)
    return RunFacts(
        run_id=run_id,
        command=visit.command,
        started_at=before(visit.left_at, max(visit.ages_s, default=0.0)),
        world_size=visit.job.world_size,
        nnodes=max(1, -(-visit.job.world_size // local)) if local else 1,
        local_world_size=local or None,
    )


def _with_absent(case: Case, age_s: float) -> Case:
    """Ranks that should be here and are not: gone where others met them, unknown in a young job."""
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
        Gap(f"rank {rank}", rank, f"it has no process yet; the job is {age_s:.0f} s old")
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
