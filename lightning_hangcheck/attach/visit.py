"""How `hangcheck attach` takes evidence: it looks a few times within two seconds.

It is the watcher's round (`WatchedRound`), look and judgement. Its own is the start of each
silence, which is asked of the kernel, of the pages of ranks, and of a sidecar that is there.
"""

from __future__ import annotations

import time
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.attach import silence
from lightning_hangcheck.attach.job_search import FoundJob, command_of
from lightning_hangcheck.attach.recorded_session import (
    RecordedSession,
    beats_of,
    history,
    watch_over,
)
from lightning_hangcheck.errors import NoJobFound
from lightning_hangcheck.look.proc import ExitWatcher, born_ns, slept_s
from lightning_hangcheck.look.sample import AT_ONCE, KeptStacks, Look, Target, look_at
from lightning_hangcheck.model.case import Case, Limits
from lightning_hangcheck.observe.discovery import ProcessTree, with_room
from lightning_hangcheck.observe.run_record import RankNote, rank_record
from lightning_hangcheck.observe.watched_rank import WatchedRound
from lightning_hangcheck.text.shown import NANOSECONDS, before, utc_now

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.evidence import Gap
    from lightning_hangcheck.model.run import RankRecord

NOTHING = RecordedSession()
LOOKS_S = (0.0, 1.02, 2.04)
"""Three looks over two seconds tell a loop from a computation; see `judge.patience`."""
SECOND_GLANCE_S = 0.25
"""Where every rank has slept for long, a glance shows whether its processes work meanwhile: a core
in use counts 25 ticks of the kernel's clock in that time, and a fifth of one, `BUSY_SHARE`, 5."""
PROBE_LIMIT_S = 3.0
TIME_LIMIT_S = 30.0
STEPS = 3
"""Of what is left of that time a step gets a third: what comes after it must have its share."""
LEAST_S = 0.2


def look(
    job: FoundJob,
    limits: Limits,
    run_id: str,
    recorded: RecordedSession = NOTHING,
    *,
    local_values: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
) -> tuple[Case, tuple[RankRecord, ...]]:
    """Take the evidence of a job that runs already and knows nothing of us, in under three seconds.

    Nothing is started in the job, and it never waits for us. Of what is proven, patience is never
    more than a second; ``local_values`` are read in the last look; the time limit is for processes
    and servers that don't answer. NoJobFound where nothing can be seen, and why.
    """
    with closing(ExitWatcher()) as exits:
        visit = _Visit(job, limits, recorded, exits, time_limit_s)
        case = visit.take_evidence(run_id, local_values=local_values)
    return case, tuple(rank_record(found, visit.round.host) for found in job.ranks)


class _Visit:
    def __init__(
        self,
        job: FoundJob,
        limits: Limits,
        recorded: RecordedSession,
        exits: ExitWatcher,
        time_limit_s: float,
    ) -> None:
        self._limits = silence.of_a_visit(limits)
        self._exits, self._job, self._recorded = exits, job, recorded
        self._began_ns = time.monotonic_ns()
        self._deadline = time.monotonic() + time_limit_s
        self.round, self._kept = WatchedRound(0), KeptStacks()
        self._gaps: dict[tuple[str, int | None], Gap] = {}
        self._mute: set[Target] = set()  # nobody waits twice for a stack that did not come in time
        self._command = command_of(job)
        self._born_ns = {found.pid: born_ns(found.pid) for found in job.ranks}
        self._slept: dict[int, float | None] = {}
        tree = ProcessTree(*self._born_ns, root_belongs=True)
        tree.take(self._began_ns)
        for found in job.ranks:
            self.round.take_in(found, self._began_ns)
            self._slept[found.pid] = slept_s(found.pid)
            exits.watch(found.pid)
        ranks = [(found.rank, found.pid) for found in job.ranks]
        self._targets, left_out = with_room(tree.targets(ranks))
        self._note((*recorded.gaps, *left_out))

    def take_evidence(self, run_id: str, *, local_values: bool) -> Case:
        """Look at the job: for two seconds, or for a quarter where the kernel knows the rest."""
        look = self._look()
        # without any stack a healthy job and a hung one look the same
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
            # where the main thread only serves others, it counts how long that one slept which
            # trains: the first look tells which that is, and woke nobody
            tid = sample.stack.threads[0].tid if sample.stack is not None else None
            if target.role == "rank" and tid not in (None, target.pid):
                self._slept[target.pid] = slept_s(target.pid, tid)
        # a tenth of a second, which passes between two looks
        import_module("lightning_hangcheck.judge.verdict")
        asleep_s = min((slept or 0.0 for slept in self._slept.values()), default=0.0)
        if asleep_s >= self._limits.idle_after:
            self._wait_until(SECOND_GLANCE_S)
            case = self._case(self._look(with_values=local_values), run_id)
            if silence.stands_still(case.ranks):
                return case
        for moment_s in LOOKS_S[1:]:
            self._wait_until(moment_s)
            look = self._look(with_values=local_values and moment_s == LOOKS_S[-1])
        return self._case(look, run_id)

    def _look(self, *, with_values: bool = False) -> Look:
        """Look as the watcher does; of what is left of the time each of three steps gets a part."""
        alive = [rank.found.rank for rank in self.round.alive]
        present = [target for target in self._targets if target.rank in alive]
        session, began_s = self._recorded.session, time.monotonic()
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
        """Wait until so many seconds of the visit are over, and see meanwhile which ranks end."""
        moment_ns, left_s = self._began_ns + int(moment_s * NANOSECONDS), 1.0
        while left_s > 0:
            left_s = max(0.0, (moment_ns - time.monotonic_ns()) / NANOSECONDS)
            for ended in self._exits.wait(left_s):
                self.round.note_exit(ended.pid, ended.exit_code)

    def _case(self, look: Look, run_id: str) -> Case:
        """As the watcher's case, with the start of each silence; pages are read last."""
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
        views = silence.with_silences(seen, watched_s, self._limits, taken_ns, watched)
        started_at = before(taken_at, max(ages_s, default=0.0))
        facts = self.round.facts(run_id, self._command, started_at)
        gaps = (*self._gaps.values(), *self.round.faults.gaps, *unwatched)
        case = Case(
            run=replace(facts, world_size=self.round.world_size),
            ranks=views,
            gaps=(*gaps, *silence.unknown_sleep(views, watched)),
            code=look.code,
            limits=silence.where_nobody_moves(self._limits, views, watched),
            taken_at=taken_at,
            taken_ns=taken_ns,
            seen_in="attach",
        )
        return silence.with_absent(complete_case(case), min(ages_s, default=0.0))

    def _read_recorded(self) -> tuple[dict[int, RankNote], tuple[Gap, ...]]:
        """Read the ranks' pages, what a sidecar knew of them before, and what of that is stale."""
        session = self._recorded.session
        if session is None:
            return {}, ()
        beats = beats_of(session, self._born_ns)
        for rank in self.round.ranks.values():
            rank.beat = beats.get(rank.found.pid)
        watch, now_ns = watch_over(session), time.monotonic_ns()
        if watch is None or watch.notes is None:
            return {}, () if watch is None else watch.gaps
        watched_s = (now_ns - self._began_ns) / NANOSECONDS
        asleep = {pid: slept + watched_s for pid, slept in self._slept.items() if slept is not None}
        return history(watch.notes, self._job.ranks, asleep, now_ns)
