"""The loop: read, decide whether to look, judge what was seen, tell what is new."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.gather.case_building import build_case
from lightning_hangcheck.model.case import Aftermath, Case
from lightning_hangcheck.observe.looking import Look, Looker
from lightning_hangcheck.observe.patience import patience_of
from lightning_hangcheck.probes.proc.exits import still_running
from lightning_hangcheck.reading.wording import name_ranks, verb
from lightning_hangcheck.text.moments import NANOSECONDS, utc_now
from lightning_hangcheck.watch.hidden_ranks import unrecorded
from lightning_hangcheck.watch.lapses import Lapses
from lightning_hangcheck.watch.other_nodes.ended_rounds import EndedRounds, LeftHere
from lightning_hangcheck.watch.ranks.roster import Roster
from lightning_hangcheck.watch.ranks.rounds import run_facts
from lightning_hangcheck.watch.recovery import Recovery
from lightning_hangcheck.watch.schedule import Schedule, figures_of
from lightning_hangcheck.watch.shutdown import Shutdown
from lightning_hangcheck.watch.telling.alarm import Alarm
from lightning_hangcheck.watch.telling.slow_telling import SlowTelling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.model.case import CodeNote, RankView
    from lightning_hangcheck.model.evidence import Gap
    from lightning_hangcheck.model.run import NodeClock, Round, RoundStart
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.other_nodes.among_nodes import AmongNodes
    from lightning_hangcheck.watch.ranks.rounds import WatchedRound
    from lightning_hangcheck.watch.telling.alarm import Telling
    from lightning_hangcheck.watch.telling.publishing import Publisher

LOOKING_POLL_S = 0.05
MOST_SEEN_CLOSER = 4
"""Culprits of which the facts tell."""
LEFT_BEHIND_AFTER_S = 1.0
"""Time in which helpers of multiprocessing, and loggers, end after the command."""
STILL_THERE_NS = 10 * NANOSECONDS
"""Time after which a person who ended a job asks why it is still there."""


class Watcher:
    """Watches the ranks of one node until the job is over.

    Args:
        session: Of the job.
        settings: In force.
        publisher: Takes what is worth telling.
        hang_proven: Called once for each hang that is proven, after it was published.
        earlier: Rounds that another sidecar of this run saw to their end; ours are added.
    """

    def __init__(
        self,
        session: Session,
        settings: Settings,
        publisher: Publisher,
        hang_proven: Callable[[], None],
        earlier: tuple[Round, ...] = (),
    ) -> None:
        self._session = session
        self._settings = settings
        self._publisher = publisher
        self._hang_proven = hang_proven
        now_ns = time.monotonic_ns()
        self._lapses = Lapses(now_ns)
        self._ended = EndedRounds()
        self.earlier = earlier
        self._nodes: AmongNodes | None = None
        self.roster = Roster(session, now_ns, rounds_before=len(earlier))
        self.alarm = Alarm()
        self.shutdown = Shutdown()
        self._said_still_there: set[int] = set()
        self._launcher_gone_ns = 0
        self._recovery = Recovery()
        self._alone = False
        self._raised_case: Case | None = None
        self._look_begun_ns = 0
        self._seen_closer: Verdict | None = None
        self._gaps: tuple[Gap, ...] = ()
        self._code: tuple[CodeNote, ...] = ()
        self._looker = Looker(settings.probe_timeout, session.torch_servers)
        self._limits = patience_of(settings)
        self._slow = self._slow_telling()
        self._schedule = Schedule(settings.look_after, figures_of(self._limits))

    @property
    def follows(self) -> bool:
        """Whether another one of several nodes judges for this one, too."""
        return self._nodes is not None and self._nodes.follows

    @property
    def moved_to(self) -> str:
        """As `AmongNodes.moved_to`."""
        return self._nodes.moved_to if self._nodes is not None else ""

    @property
    def clocks(self) -> tuple[NodeClock, ...]:
        """How far other nodes' clocks are ahead of this one's, where this is the first node."""
        return self._nodes.clocks() if self._nodes is not None else ()

    def meet(self, nodes: AmongNodes | None) -> None:
        """Be one of the job's nodes from now on.

        Args:
            nodes: This one among the others; None where they do not meet.
        """
        if self._nodes is not None:
            self._nodes.close()
        self._nodes = nodes
        if nodes is not None:
            self._ended.meet(nodes)

    def tick(self) -> None:
        """Read everything once, act on it, and wait for the next reading."""
        now_ns = time.monotonic_ns()
        lapsed = self._forgive_lapse(now_ns)
        self.roster.update(now_ns)
        self._end_left_rounds(now_ns)
        self._say_outlived(now_ns)
        look = self._looker.finished()
        if self._look_begun_ns < self.roster.round_began_ns:
            look = None
        if look is not None:
            self._take(look)
        if self._shutting_down(now_ns, looked=look is not None):
            self._say_still_there(now_ns)
        else:
            if look is not None:
                self._judge_look(look, now_ns)
            elif not self._looker.looking and self._says_more(now_ns):
                self._judge(now_ns)
            self._notice_recovery(now_ns)
            self._watch_pace(now_ns, lapsed=lapsed)
            self._look_if_due(now_ns)
        if self._nodes is not None:
            self._share(self._nodes, now_ns, looked=look is not None)
        self.roster.wait(LOOKING_POLL_S if self._looker.looking else self._settings.poll_interval)

    def end_asked(self, by: str) -> None:
        """Somebody asks the job to end: from now on nothing is judged afresh.

        Args:
            by: As in `AskedEnd`.
        """
        now_ns = time.monotonic_ns()
        self.shutdown.ask(by, self.roster.views(now_ns), self._suspected(), now_ns)

    def _suspected(self) -> str:
        standing = self.alarm.standing
        suspects = standing is not None and standing.verdict == "suspect"
        return standing.summary if standing is not None and suspects else ""

    def launcher_gone(self) -> None:
        """`hangcheck run` was killed: nobody but us knows of what it has left."""
        self._launcher_gone_ns = time.monotonic_ns()

    def conclude(self, exit_code: int | None, left_running: Sequence[int]) -> Verdict:
        """Judge the last round, tell and return it; a hang that stands is not judged afresh.

        Args:
            exit_code: Of the command, where its launcher says it.
            left_running: What it left behind; most of that ends at once.
        """
        from lightning_hangcheck.diagnosis import judge
        from lightning_hangcheck.diagnosis.judge import aftermath_of, ended_well

        self._looker.close()
        self._slow.close()
        left_running = still_running(left_running, LEFT_BEHIND_AFTER_S)
        now_ns = time.monotonic_ns()
        self.roster.update(now_ns, scan=True)
        self._end_left_rounds(now_ns, at_once=True)
        ended = self._own_case(self.roster.round, now_ns, ended=True)
        if self._nodes is not None:
            self._nodes.tell(ended, None, ended=True)
            ended = self._nodes.join_end(ended)
            self._nodes.close()
        case = replace(
            ended,
            exit_code=exit_code,
            left_running=left_running,
            asked_end=self.shutdown.asked,
        )
        standing, asked = self.alarm.standing, self.shutdown.asked
        well = standing is not None and ended_well(case)
        if well and asked is None:
            self._tell_recovery(self._recovery.since_ns or now_ns)
        verdict = judge(case)
        killed = bool(self._suspected()) and not well and verdict.verdict == "finished"
        if standing is not None and (self.alarm.proven or killed):
            asked_ns = self.shutdown.asked_ns if asked is not None else now_ns
            self._tell_aftermath(aftermath_of(case), asked_ns)
            return standing
        self._publisher.publish(
            case, verdict, "line" if verdict.verdict == "finished" else "report"
        )
        return verdict

    def _forgive_lapse(self, now_ns: int) -> bool:
        """Silence counts only while somebody watched, and while the job was allowed to run.

        The moment of the alarm moves along, else what is forgiven would look like progress since.

        Returns:
            Whether there is anything to forgive.
        """
        lapse_ns = self._lapses.read(now_ns, suspended=self.roster.suspended)
        if lapse_ns:
            self.roster.forgive(lapse_ns, now_ns)
            self._recovery.forgive(lapse_ns, now_ns)
        return lapse_ns > 0

    def _end_left_rounds(self, now_ns: int, *, at_once: bool = False) -> None:
        """Tell how each round ended that another has followed, and start afresh with that one."""
        for left, next_start in self.roster.left_rounds():
            self._settle_rounds(now_ns, at_once=True)
            case = self._own_case(left, now_ns, ended=True, next_start=next_start)
            case = replace(case, asked_end=self.shutdown.end_round())
            hang = self.alarm.standing if self.alarm.proven else None
            self._ended.leave(LeftHere(case, left.started_at, hang), self._nodes)
            self.alarm, self._gaps, self._code = Alarm(), (), ()
            self._raised_case, self._recovery = None, Recovery()
            self._slow.close()
            self._slow = self._slow_telling()
            self._schedule.calm()
        self._settle_rounds(now_ns, at_once=at_once)

    def _settle_rounds(self, now_ns: int, *, at_once: bool) -> None:
        for case, verdict, ended in self._ended.settled(self._nodes, now_ns, at_once=at_once):
            if verdict.verdict != "finished":
                self._publisher.publish(case, verdict, "line")
            self.earlier = (*self.earlier, ended)

    def _take(self, look: Look) -> None:
        self._gaps, self._code = look.gaps, look.code
        if self._session.facts.launched:
            self._gaps += unrecorded(self.roster.alive)
        self.roster.add(look)

    def _shutting_down(self, now_ns: int, *, looked: bool) -> bool:
        """Asked only where there is something to judge, or not to."""
        if not (looked or self.alarm.proven or self.shutdown.asked is not None):
            return False
        return self._ends(self.roster.views(now_ns), now_ns)

    def _ends(self, ranks: Sequence[RankView], now_ns: int) -> bool:
        return self.shutdown.begun(
            ranks, proven=self.alarm.proven, suspected=self._suspected(), now_ns=now_ns
        )

    def _say_still_there(self, now_ns: int) -> None:
        """A hung job that does not end when it is asked to: say once how it can be ended."""
        asked, since_ns = self.shutdown.asked, self.shutdown.asked_ns
        if asked is None or not self.alarm.proven or self._settings.on_hang != "report":
            return
        if since_ns in self._said_still_there or now_ns - since_ns < STILL_THERE_NS:
            return
        self._said_still_there.add(since_ns)
        pids = " ".join(str(rank.found.pid) for rank in self.roster.alive)
        text = f"it is still there, though asked to end by {asked.by}: kill -KILL {pids}"
        self._tell_aftermath(text, now_ns)

    def _say_outlived(self, now_ns: int) -> None:
        """Ranks outlive a killed `hangcheck run`, also where it was about to end them."""
        gone_ns, watched = self._launcher_gone_ns, self.roster.round
        if not gone_ns or now_ns - gone_ns < STILL_THERE_NS or not watched.alive:
            return
        self._launcher_gone_ns = 0
        pids = [*watched.agents_alive, *(one.found.pid for one in watched.alive)]
        ranks = [one.found.rank for one in watched.alive]
        log.once(
            "outlived",
            f"hangcheck run was killed; {name_ranks(ranks)} {verb(ranks, 'runs', 'run')} on, still "
            f"watched; end what is left: kill -KILL {' '.join(map(str, pids))}",
        )

    def _tell_aftermath(self, text: str, moment_ns: int) -> None:
        """Tell what became of the job while a hang stood, with the evidence of that hang."""
        from lightning_hangcheck.diagnosis.judge import judge, with_aftermath

        if self._raised_case is None:
            return
        after_s = round(max(0, moment_ns - self._raised_case.taken_ns) / NANOSECONDS, 3)
        aftermath = Aftermath(after_s=after_s, text=text)
        case, hang = replace(self._raised_case, aftermath=aftermath), self.alarm.standing
        by_other = hang is not None and not self._alone  # by more than this node's case shows
        verdict = with_aftermath(hang, aftermath) if by_other and hang else judge(case)
        self._publisher.publish(case, verdict, "aftermath")

    def _judge_look(self, look: Look, now_ns: int) -> None:
        still = [rank.note_activity(now_ns) for rank in self.roster.alive]
        self._judge(now_ns, closer=look.closer)
        self._schedule.looked(
            self._look_begun_ns,
            suspicious=self.alarm.standing is not None,
            stood_still=any(still),
            cost_s=self._looker.cost_s,
            lasted_s=(now_ns - self._look_begun_ns) / NANOSECONDS,
        )

    def _says_more(self, now_ns: int) -> bool:
        """Where no rank is left here, the looks of other nodes say when to judge."""
        if self._nodes is not None and not self.roster.alive:
            return self._nodes.looked_elsewhere()
        return self._schedule.says_more(self.roster.alive, now_ns)

    def _share(self, nodes: AmongNodes, now_ns: int, *, looked: bool) -> None:
        """Tell the other nodes how things are here, and take what the first one says of all."""
        if looked or nodes.is_due(now_ns):
            nodes.agree(self.roster.round, now_ns)
            own = self._own_case(self.roster.round, now_ns)
            nodes.tell(own, self._publisher.newest)
            if self.shutdown.asked is None:
                nodes.notice_silence(own)
        verdict = nodes.news()
        if verdict is None:
            return
        case = self._case(self.roster.round, now_ns)
        if verdict.verdict == "recovered":
            if self.alarm.recovered(verdict.detected_at, verdict.stalled_for_s) is not None:
                self._publisher.publish(case, verdict, "line")
            return
        self._alone = False
        telling = self.alarm.take(verdict)
        self._raise(case, verdict, "line" if telling == "report" else telling)

    def _judge(self, now_ns: int, *, closer: bool = False) -> None:
        """Importing the judgement takes 20 MB and a third of a second: only once it is needed."""
        if self.follows:
            return
        from lightning_hangcheck.diagnosis import judge

        case = self._case(self.roster.round, now_ns)
        if self._ends(case.ranks, now_ns):  # as ranks of other nodes show it, too
            return
        self._alone = True
        verdict = judge(case)
        self._schedule.judged(self.roster.alive, now_ns)
        self._raise(case, verdict, self.alarm.take(verdict, closer=closer))

    def _raise(self, case: Case, verdict: Verdict, telling: Telling | None) -> None:
        if telling is None:
            return
        self._recovery.raised(case.taken_ns)
        self._raised_case = case
        if self.alarm.proven:
            self.shutdown.hang_proven(case.ranks)
        self._publisher.publish(case, verdict, telling)
        if self.alarm.proven and telling in ("report", "line"):
            self._hang_proven()

    def _notice_recovery(self, now_ns: int) -> None:
        here, standing = self.roster.ranks, self.alarm.standing
        if standing is None or (self.follows and not self._alone):
            return
        there = self._nodes.elsewhere(now_ns) if self._nodes is not None else None
        if self._recovery.has_come(standing, here, there, now_ns) and not self._ends(
            self._case(self.roster.round, now_ns).ranks, now_ns
        ):
            self._tell_recovery(self._recovery.since_ns)

    def _tell_recovery(self, since_ns: int) -> None:
        silence_s = self._recovery.silence_s(self.alarm.standing, since_ns)
        recovered = self.alarm.recovered(utc_now(), silence_s)
        if recovered is not None:
            case = self._case(self.roster.round, time.monotonic_ns())
            self._publisher.publish(case, recovered, "line")

    def _watch_pace(self, now_ns: int, *, lapsed: bool) -> None:
        """Each node compares its own ranks, and speaks of them only while no alarm stands."""
        slow = self._slow
        slow.read(self.roster.alive, now_ns, lapsed=lapsed)
        if self.alarm.standing is None and self.shutdown.asked is None:
            slow.tell(
                now_ns, partial(self._own_case, self.roster.round, now_ns), self.roster.targets
            )

    def _slow_telling(self) -> SlowTelling:
        settings, servers = self._settings, self._session.torch_servers
        looker = partial(Looker, settings.probe_timeout, servers)
        return SlowTelling(settings.slow_after, self._publisher, looker)

    def _look_if_due(self, now_ns: int) -> None:
        if self._looker.looking or not self._schedule.due_for(self.roster.alive, now_ns):
            return
        targets = self.roster.targets()
        if targets:
            self._looker.begin(targets, self._ranks_with_values(), self._ranks_to_see_closer())
            self._look_begun_ns = now_ns

    def _ranks_with_values(self) -> tuple[int, ...]:
        """Local variables are read on request only, and then of ranks that a suspicion names."""
        standing = self.alarm.standing
        return standing.culprits if self._settings.locals and standing is not None else ()

    def _ranks_to_see_closer(self) -> tuple[int, ...]:
        """Native calls cost a pause: only of ranks that a hang names, and once for each verdict."""
        standing = self.alarm.standing
        if standing is None or not self.alarm.proven or standing is self._seen_closer:
            return ()
        self._seen_closer = standing
        return standing.culprits[:MOST_SEEN_CLOSER]

    def _case(self, watched: WatchedRound, now_ns: int) -> Case:
        """Of all nodes, while the job goes on."""
        case = self._own_case(watched, now_ns)
        return case if self._nodes is None else self._nodes.join(case)

    def _own_case(
        self,
        watched: WatchedRound,
        now_ns: int,
        *,
        ended: bool = False,
        next_start: RoundStart | None = None,
    ) -> Case:
        return build_case(
            run=run_facts(self._session, watched, self.earlier, next_start),
            ranks=watched.views(self.roster.host, now_ns),
            gaps=(*self._gaps, *self._lapses.gaps),
            code=self._code,
            limits=self._limits,
            taken_at=utc_now(),
            taken_ns=now_ns,
            ended=ended,
        )
