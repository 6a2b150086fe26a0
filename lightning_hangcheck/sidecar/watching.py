"""The loop: read, decide whether to look, judge what was seen, tell what is new."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lightning_hangcheck.gather.case_building import build_case
from lightning_hangcheck.model.case import Case, RunFacts
from lightning_hangcheck.probes.vitals import vitals
from lightning_hangcheck.sidecar.alarm import Alarm
from lightning_hangcheck.sidecar.clock import utc_now
from lightning_hangcheck.sidecar.limits import limits_of
from lightning_hangcheck.sidecar.looking import Look, Looker
from lightning_hangcheck.sidecar.progress import NANOSECONDS
from lightning_hangcheck.sidecar.roster import Roster
from lightning_hangcheck.sidecar.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.model.code_note import CodeNote
    from lightning_hangcheck.model.evidence import Gap
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.session import Session
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.sidecar.publishing import Publisher

LAPSE_S = 2.0
"""A reading that comes this much late means that we were stopped or starved, not the ranks."""
LOOKING_POLL_S = 0.05
CLOSER_EVERY_S = 15.0
MOST_SEEN_CLOSER = 4
"""Culprits of which the facts tell."""
STOPPED = ("T", "t")


class Watcher:
    """Watches the ranks of one node until the job is over.

    Args:
        session: Of the job.
        settings: In force.
        publisher: Takes what is worth telling.
        hang_proven: Called once for each hang that is proven, after it was published.
    """

    def __init__(
        self,
        session: Session,
        settings: Settings,
        publisher: Publisher,
        hang_proven: Callable[[], None],
    ) -> None:
        self._session = session
        self._settings = settings
        self._publisher = publisher
        self._hang_proven = hang_proven
        self._read_ns = time.monotonic_ns()
        self.roster = Roster(session, self._read_ns)
        self.alarm = Alarm()
        self._raised_ns = 0
        self._look_begun_ns = 0
        self._closer_ns = 0
        self._gaps: tuple[Gap, ...] = ()
        self._code: tuple[CodeNote, ...] = ()
        self._looker = Looker(settings.probe_timeout, session.torch_servers)
        self._schedule = Schedule(settings.look_after)

    def tick(self) -> None:
        """Read everything once, act on it, and wait for the next reading."""
        now_ns = time.monotonic_ns()
        self._forgive_lapse(now_ns)
        self.roster.update(now_ns)
        look = self._looker.finished()
        if look is not None and not self._job_is_ended():
            self._judge(look, now_ns)
        self._notice_recovery(now_ns)
        if not self._looker.looking and self._due(now_ns):
            targets = self.roster.targets()
            if targets:
                self._looker.begin(
                    targets, self._ranks_with_values(), self._ranks_to_see_closer(now_ns)
                )
                self._look_begun_ns = now_ns
        self.roster.wait(LOOKING_POLL_S if self._looker.looking else self._settings.poll_interval)

    def _ranks_with_values(self) -> tuple[int, ...]:
        """Local variables are read on request only, and then of ranks that a suspicion names."""
        standing = self.alarm.standing
        return standing.culprits if self._settings.locals and standing is not None else ()

    def _ranks_to_see_closer(self, now_ns: int) -> tuple[int, ...]:
        """Native calls cost a pause: only of ranks that were named already, and not each time."""
        standing = self.alarm.standing
        if standing is None or now_ns - self._closer_ns < CLOSER_EVERY_S * NANOSECONDS:
            return ()
        self._closer_ns = now_ns
        return standing.culprits[:MOST_SEEN_CLOSER]

    def conclude(self, exit_code: int | None) -> tuple[Case, Verdict]:
        """Judge the job at its end."""
        from lightning_hangcheck.diagnosis import judge

        self._looker.close()
        now_ns = time.monotonic_ns()
        self.roster.update(now_ns)
        case = self._case(now_ns, ended=True, exit_code=exit_code)
        return case, judge(case)

    def _judge(self, look: Look, now_ns: int) -> None:
        """Importing the judgement takes 20 MB and a third of a second: only once it is needed."""
        from lightning_hangcheck.diagnosis import judge
        from lightning_hangcheck.diagnosis.activity import doing

        self._gaps, self._code = look.gaps, look.code
        self.roster.add(look)
        for rank in self.roster.alive:
            seen = doing(rank.view("", now_ns))
            if seen.carried:
                rank.progress.saw_new(now_ns)
            if seen.activity == "moving":
                rank.progress.saw_movement(now_ns)
            elif seen.activity == "busy":
                rank.progress.saw_spinning()
        case = self._case(now_ns)
        verdict = judge(case)
        telling = self.alarm.hear(verdict)
        self._schedule.looked(self._look_begun_ns, suspicious=self.alarm.standing is not None)
        if telling is None:
            return
        self._raised_ns = now_ns
        self._publisher.publish(case, verdict, telling)
        if telling == "report":
            self._hang_proven()

    def _job_is_ended(self) -> bool:
        """Whether `hangcheck run` is ending the job: what ranks do on SIGTERM is no recovery."""
        launched, on_hang = self._session.facts.launched, self._settings.on_hang
        return self.alarm.proven and launched and on_hang == "abort"

    def _notice_recovery(self, now_ns: int) -> None:
        standing = self.alarm.standing
        if standing is None or self._job_is_ended():
            return
        blamed = [rank for rank in self.roster.alive if rank.found.rank in standing.culprits]
        if not blamed or not all(
            rank.progress.last_progress_ns > self._raised_ns for rank in blamed
        ):
            return
        silence = standing.stalled_for_s + (now_ns - self._raised_ns) / NANOSECONDS
        recovered = self.alarm.recovered(utc_now(), silence)
        if recovered is not None:
            self._publisher.publish(self._case(now_ns), recovered, "line")

    def _due(self, now_ns: int) -> bool:
        silent = max(
            self.roster.alive, key=lambda rank: rank.progress.silent_ns(now_ns), default=None
        )
        if silent is None:
            return False
        pace = silent.progress.pace()
        return self._schedule.due(
            silent.progress.silent_ns(now_ns) / NANOSECONDS,
            pace.longest_pause_s if pace is not None and pace.known else 0.0,
            min(rank.progress.idle_ns(now_ns) for rank in self.roster.alive) / NANOSECONDS,
            now_ns,
        )

    def _forgive_lapse(self, now_ns: int) -> None:
        """Silence counts only while somebody watched, and while the job was allowed to run."""
        lapse_ns = now_ns - self._read_ns
        self._read_ns = now_ns
        if lapse_ns > LAPSE_S * NANOSECONDS or self._job_suspended():
            self.roster.forgive(lapse_ns, now_ns)

    def _job_suspended(self) -> bool:
        """Somebody stopped the whole job with its launcher (job control), not one rank of it."""
        alive = self.roster.alive
        if not alive or any(rank.state not in STOPPED for rank in alive):
            return False
        launcher = vitals(self._session.facts.root_pid)
        return launcher is not None and launcher.state in STOPPED

    def _case(self, now_ns: int, *, ended: bool = False, exit_code: int | None = None) -> Case:
        return build_case(
            run=self._run_facts(),
            ranks=self.roster.views(now_ns),
            gaps=self._gaps,
            code=self._code,
            limits=limits_of(self._settings),
            taken_at=utc_now(),
            taken_ns=now_ns,
            ended=ended,
            exit_code=exit_code,
        )

    def _run_facts(self) -> RunFacts:
        found = [rank.found for rank in self.roster.ranks.values()]
        local = [rank.local_world_size for rank in found if rank.local_world_size is not None]
        world_size = max((rank.world_size or 0 for rank in found), default=0)
        facts = self._session.facts
        return RunFacts(
            run_id=self._session.run_folder.run_id,
            command=facts.command,
            started_at=facts.started_at,
            world_size=world_size,
            nnodes=max(1, -(-world_size // max(local))) if local else 1,
            local_world_size=max(local, default=None),
        )
