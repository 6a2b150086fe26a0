"""Takes the evidence of `hangcheck attach` in a few looks within two seconds.

It uses the watcher's rounds (`WatchedRound`), looks and judgement. It adds how long each rank was
silent before (by the kernel, by ranks' pages, and by a sidecar if there is one), with how much
patience, and whether the job's output may be buffered.
"""

from __future__ import annotations

import math
import stat
import time
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.attach import recorded_session
from lightning_hangcheck.attach.job_search import FoundJob, command_of
from lightning_hangcheck.errors import NoJobFound
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.judge.activity import Activity, describe_gpus, read_rank_activity
from lightning_hangcheck.judge.frames import COLLECTIVE
from lightning_hangcheck.judge.wording import duration, name_ranks
from lightning_hangcheck.look import proc
from lightning_hangcheck.look.programs import VARIABLE, is_unbuffered, kept_back_in
from lightning_hangcheck.look.sample import AT_ONCE, KeptStacks, Look, Target, look_at
from lightning_hangcheck.model.case import Case, Limits, ProcessExit, RankView
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.observe.discovery import ProcessTree, with_room
from lightning_hangcheck.observe.run_record import RankNote, rank_record
from lightning_hangcheck.observe.watched_rank import WatchedRound
from lightning_hangcheck.text.moments import before
from lightning_hangcheck.text.shown import NANOSECONDS, utc_now

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lightning_hangcheck.model.run import RankRecord
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.session.session import Session

NUMBERS = Gap(
    "the numbers of the ranks",
    None,
    "no variable tells; they are counted in the order in which the processes were started",
    "rank",
)
LOOKS_S = (0.0, 1.02, 2.04)
"""Three looks over two seconds distinguish a loop from a computation; see `judge.patience`."""
SECOND_GLANCE_S = 0.25
"""If every rank has slept for long, a second look shows whether its processes work. In this time a
core in use counts 25 ticks of the kernel's clock, and a fifth of a core (`BUSY_SHARE`) 5."""
PROBE_LIMIT_S = 3.0
TIME_LIMIT_S = 30.0
STEPS = 3
"""A step gets a third of the time that is left, so that later steps have their share."""
LEAST_S = 0.2


def look(
    job: FoundJob,
    limits: Limits,
    run_id: str,
    recorded: proc.Looked[Session] = (None, ()),
    *,
    local_values: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
) -> tuple[Case, tuple[RankRecord, ...]]:
    """Take the evidence of a running job that knows nothing of us, in under three seconds.

    Nothing is started in the job, and it never waits for us. Patience for a proven hang is at most
    one second; ``local_values`` are read in the last look; the time limit is for processes and
    servers that do not answer. NoJobFound if nothing can be seen, with the reason.
    """
    with closing(proc.ExitWatcher()) as exits:
        visit = _Visit(job, limits, recorded, exits, time_limit_s)
        case = visit.take_evidence(run_id, local_values=local_values)
    return case, tuple(rank_record(found, visit.round.host) for found in job.ranks)


class _Visit:
    def __init__(
        self,
        job: FoundJob,
        limits: Limits,
        recorded: proc.Looked[Session],
        exits: proc.ExitWatcher,
        time_limit_s: float,
    ) -> None:
        self._limits = of_a_visit(limits)
        self._exits, self._job = exits, job
        self._session, unrecorded = recorded
        self._began_ns = time.monotonic_ns()
        self._deadline = time.monotonic() + time_limit_s
        self.round, self._kept = WatchedRound(0), KeptStacks()
        self._gaps: dict[tuple[str, int | None], Gap] = {}
        self._mute: set[Target] = set()  # no second wait for a stack that was late
        self._command = command_of(job.ranks[0].pid)
        self._born_ns = {found.pid: proc.born_ns(found.pid) for found in job.ranks}
        self._slept: dict[int, float | None] = {}
        self._trains: dict[int, int | None] = {}  # threads that train, if main threads do not
        tree = ProcessTree(*self._born_ns, root_belongs=True)
        tree.take(self._began_ns)
        for found in job.ranks:
            self.round.take_in(found, self._began_ns)
            self._slept[found.pid] = proc.slept_s(found.pid)
            exits.watch(found.pid)
        ranks = [(found.rank, found.pid) for found in job.ranks]
        self._targets, left_out = with_room(tree.targets(ranks))
        self._note((*unrecorded, *left_out, *((NUMBERS,) if job.counted else ())))

    def take_evidence(self, run_id: str, *, local_values: bool) -> Case:
        """Look at the job for two seconds, or for a quarter if the kernel knows the rest."""
        look = self._look()
        # without stacks, a healthy job and a hung one look the same
        own = [sample for target, sample in look.samples if target.role == "rank"]
        stopped = (sample.kernel is not None and sample.kernel.state == "T" for sample in own)
        if not (any(sample.stack is not None for sample in own) or any(stopped)):
            gap = next((gap for gap in self._gaps.values() if gap.kind == "stack"), None)
            why, remedy = (gap.why, gap.remedy) if gap else ("its processes are gone", "")
            raise NoJobFound(
                f"no stack of the job can be read: {why}",
                remedy or "look for its processes again: hangcheck attach",
            )
        for target, sample in look.samples:
            # if the main thread only serves others, the sleep of the thread that trains counts: the
            # first look identifies that thread, and wakes no thread
            tid = sample.stack.threads[0].tid if sample.stack is not None else None
            if target.role == "rank" and tid not in (None, target.pid):
                self._trains[target.pid] = tid
                self._slept[target.pid] = proc.slept_s(target.pid, tid)
        # this import takes 0.1 s, and there is time between two looks
        import_module("lightning_hangcheck.judge.verdict")
        asleep_s = min((slept or 0.0 for slept in self._slept.values()), default=0.0)
        if asleep_s >= self._limits.idle_after:
            self._wait_until(SECOND_GLANCE_S)
            case = self._case(self._look(with_values=local_values), run_id)
            if stands_still(case.ranks):
                return case
        for moment_s in LOOKS_S[1:]:
            self._wait_until(moment_s)
            look = self._look(with_values=local_values and moment_s == LOOKS_S[-1])
        return self._case(look, run_id)

    def _look(self, *, with_values: bool = False) -> Look:
        """Look as the watcher does; each of three steps gets a part of the time left."""
        alive = [rank.found.rank for rank in self.round.alive]
        present = [target for target in self._targets if target.rank in alive]
        session, began_s = self._session, time.monotonic()
        rounds = max(1, -(-len(alive) // AT_ONCE))
        left_s = max(LEAST_S, (self._deadline - began_s) / STEPS)
        limit_s = max(LEAST_S, min(PROBE_LIMIT_S, left_s / rounds))
        look = look_at(
            [
                replace(target, python=target.python and target not in self._mute)
                for target in present
            ],
            limit_s,
            None if session is None else session.torch_servers,
            time.time() - max(self._ages_s(), default=0.0),
            with_values=alive if with_values else (),
            given_up=lambda: time.monotonic() > began_s + left_s,
            kept=self._kept,
        )
        samples = tuple(
            (target, sample) for target, (_, sample) in zip(present, look.samples, strict=True)
        )
        if time.monotonic() - began_s >= limit_s:
            asked = ((target, sample) for target, sample in samples if target.role == "rank")
            self._mute.update(target for target, sample in asked if sample.stack is None)
        look = replace(look, samples=samples)
        self._note(look.gaps)
        self.round.add(look)
        return look

    def _note(self, gaps: Iterable[Gap]) -> None:
        self._gaps.update(((gap.what, gap.rank), gap) for gap in gaps)

    def _ages_s(self) -> list[float]:
        now_ns = time.monotonic_ns()
        return [(now_ns - born) / NANOSECONDS for born in self._born_ns.values()]

    def _wait_until(self, moment_s: float) -> None:
        """Wait until this moment of the visit, and note which ranks end meanwhile."""
        moment_ns, left_s = self._began_ns + int(moment_s * NANOSECONDS), 1.0
        while left_s > 0:
            left_s = max(0.0, (moment_ns - time.monotonic_ns()) / NANOSECONDS)
            for ended in self._exits.wait(left_s):
                self.round.note_exit(ended.pid, ended.exit_code)

    def _case(self, look: Look, run_id: str) -> Case:
        """Build the watcher's case, with the start of each silence; pages are read last."""
        from lightning_hangcheck.judge.joining import complete_case

        watched, unwatched = self._read_recorded()
        self._wait_until(0)
        taken_at, taken_ns, ages_s = utc_now(), time.monotonic_ns(), self._ages_s()
        seen = []
        for view in self.round.views(taken_ns):
            slept = None if view.pid is None else self._slept[view.pid]
            slept = None if slept is None else round(slept, 3)
            seen.append(replace(view, slept_for_s=slept, spent=None))
        watched_s = (taken_ns - self._began_ns) / NANOSECONDS
        ran = set()
        for view in seen:
            if view.pid is not None and view.process_exit is None:
                slept = proc.slept_s(view.pid, self._trains.get(view.pid))
                if slept is not None and slept < watched_s:
                    ran.add(view.rank)
        views = with_silences(seen, watched_s, self._limits, taken_ns, watched)
        started_at = before(taken_at, max(ages_s, default=0.0))
        facts = self.round.facts(run_id, self._command, started_at)
        gaps = (*self._gaps.values(), *self.round.faults.gaps, *unwatched)
        case = Case(
            run=replace(facts, world_size=self.round.world_size),
            ranks=views,
            gaps=(*gaps, *unknown_sleep(views, watched, ran)),
            code=look.code,
            limits=where_nobody_moves(self._limits, views, watched),
            taken_at=taken_at,
            taken_ns=taken_ns,
            seen_in="attach",
        )
        return with_absent(complete_case(case), min(ages_s, default=0.0))

    def _read_recorded(self) -> tuple[dict[int, RankNote], tuple[Gap, ...]]:
        session = self._session
        if session is None:
            return {}, ()
        beats = recorded_session.beats_of(session, self._born_ns)
        for rank in self.round.ranks.values():
            rank.beat = beats.get(rank.found.pid)
        watch, now_ns = recorded_session.watch_over(session), time.monotonic_ns()
        if watch is None or watch.notes is None:
            return {}, () if watch is None else watch.gaps
        watched_s = (now_ns - self._began_ns) / NANOSECONDS
        asleep = {pid: slept + watched_s for pid, slept in self._slept.items() if slept is not None}
        return recorded_session.history(watch.notes, self._job.ranks, asleep, now_ns)


# How long each rank of an unwatched job was silent, and with how much patience

PROVEN_AFTER_S = 1.0
"""A proven hang is reported at once, as nobody watched before; but not of a rank that reports that
it has just progressed."""
VISIT_S = 2.0
"""Seconds from the first look of a visit to its last."""
WOKEN_S = 5.0
"""If no rank does anything, another tool's look may have begun a sleep shorter than this."""
YOUNG_S = 15.0
"""A job younger than this may still be starting its ranks."""
NOBODY_WATCHED: Mapping[int, RankNote] = MappingProxyType({})


def with_silences(
    views: Sequence[RankView],
    watched_s: float,
    limits: Limits,
    now_ns: int,
    watched: Mapping[int, RankNote] = NOBODY_WATCHED,
) -> tuple[RankView, ...]:
    """Fill in how long each rank has been silent and idle.

    Views have all their samples and ``slept_for_s``. ``watched``: what a sidecar knows of ranks, up
    to now. No rank was silent for longer than since its page's last beat.
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
        # time for which its main thread, or all of it, has not used the processor
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
            if own_s < limits.idle_after:  # it may have reached this line just now
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
    """Return the patience of a single visit: what cannot end is reported at once."""
    at_once = ("suspect_proven_after", "proven_after", "suspect_person_after", "person_after")
    shorter = {name: min(getattr(limits, name), PROVEN_AFTER_S) for name in at_once}
    return replace(limits, **shorter)


def where_nobody_moves(
    limits: Limits, views: Sequence[RankView], watched: Mapping[int, RankNote]
) -> Limits:
    """Return the patience with a job in which no rank did anything during the visit.

    Another tool's look wakes a rank that has been stuck for an hour, and the kernel keeps no
    earlier sleep. So while others wait, a rank that is idle for a whole visit is suspected. If a
    sidecar watched, this is known and not guessed.
    """
    activities = {read_rank_activity(view).activity for view in views}
    if watched or not stands_still(views) or "waiting" not in activities:
        return limits
    shorter = ("suspect_idle_after", "suspect_outside_after")
    return replace(limits, **{name: min(getattr(limits, name), VISIT_S) for name in shorter})


def stands_still(views: Sequence[RankView]) -> bool:
    """Whether no rank with a process does anything."""
    alive = [view for view in views if view.pid is not None and view.process_exit is None]
    activities = {read_rank_activity(view).activity for view in alive}
    return bool(alive) and activities <= {"idle", "waiting", "stopped"}


def unknown_sleep(
    views: Sequence[RankView], watched: Mapping[int, RankNote], ran: Collection[int]
) -> tuple[Gap, ...]:
    """Return a gap for each rank of unknown sleep before the visit; ``ran``: ran during it."""
    longest_s = max((view.slept_for_s or 0.0 for view in views), default=0.0)
    woken = stands_still(views) and longest_s < WOKEN_S
    gaps = []
    for view in views:
        asleep_s = view.slept_for_s
        if view.process_exit is not None or view.rank in watched:
            continue
        if asleep_s is not None and not woken:
            continue
        why = "the kernel does not show it (/proc/PID/sched); compare with a visit in a minute"
        if view.rank in ran:  # our look wakes no rank
            why = (
                "it also ran during this visit: it works, or asks again and again for what does "
                "not come; a visit in a minute shows which"
            )
        elif asleep_s is not None:
            why = (
                f"it last ran {asleep_s:.1f} s before this visit; that may have been another "
                "tool's look (py-spy, gdb), which wakes it: visit again in half a minute, without "
                "one"
            )
        gaps.append(Gap("how long it had been idle before", view.rank, why, "sleep"))
    return tuple(gaps)


def with_absent(case: Case, age_s: float) -> Case:
    """Add missing ranks: gone if others are in a collective, unknown in a young job."""
    absent = [view.rank for view in case.ranks if view.pid is None]
    if not absent:
        return case
    waits = (read_rank_activity(view).wait for view in case.ranks)
    if any(wait is not None and wait.kind in COLLECTIVE for wait in waits):
        # the process group had formed, with all ranks
        gone = ProcessExit(order=0, at=case.taken_at)
        views = tuple(
            replace(view, process_exit=gone) if view.pid is None else view for view in case.ranks
        )
        return replace(case, ranks=views)
    if age_s >= YOUNG_S:
        return case
    why = f"no process yet; the job is {age_s:.0f} s old"
    there = tuple(view for view in case.ranks if view.pid is not None)
    gaps = (*case.gaps, Gap(name_ranks(absent), None, why, "rank"))
    return replace(case, ranks=there, gaps=gaps)


# Buffered output

SILENT_AFTER_S = 10.0
"""A log that has grown in this time is live; Lightning draws its bar several times a second."""
STORAGE_LIMIT_S = 1.0
MOST_RANKS = 8
"""Ranks to check, 2 ms each: those of one machine print to one place."""


def kept_output(case: Case, verdict: Verdict) -> str | None:
    """Say that a rank works though its log may be silent, and how to unbuffer its output.

    None if no rank was seen to work, its output is not buffered, or its file has just grown. A pipe
    does not show when it was last written to: only a file proves its silence.
    """
    if verdict.verdict not in ("healthy", "slow"):
        return None
    for view in case.ranks[:MOST_RANKS]:
        seen = read_rank_activity(view)
        if view.pid is None or seen.activity not in ("moving", "busy"):
            continue
        environment, command = proc.read_environment(view.pid), proc.command_line(view.pid)
        if isinstance(environment, Gap) or isinstance(command, Gap):
            continue
        try:
            output = apart(STORAGE_LIMIT_S, Path(f"/proc/{view.pid}/fd/1").stat)
        except NoAnswerFromStorage:
            return None
        except OSError:
            continue
        place, grown, maybe = kept_back_in(output.st_mode), "", ""
        if place is None or is_unbuffered(environment, command):
            continue
        if stat.S_ISREG(output.st_mode):
            silent_for_s = time.time() - output.st_mtime
            if silent_for_s < SILENT_AFTER_S:
                continue
            grown = f" that has not grown for {duration(silent_for_s)},"
        else:
            maybe = ", so if the log is silent, that may be why"
        own = view.own_process
        use = [f"{seen.process_activity.cpu_share:.2f} of a core"]
        use += describe_gpus(own) if own is not None else ()
        return (
            f"rank {view.rank} works ({'; '.join(use)}), and what is printed may still be in its "
            f"buffer: standard output is {place}{grown} and {VARIABLE} is not set{maybe}; "
            f"next time: {VARIABLE}=1, python -u, or print(..., flush=True)"
        )
    return None
