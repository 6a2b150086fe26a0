"""The loop: read, look, judge and report until the job is over. It never waits."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.alerts import AlertsAskedFor
from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.joining import complete_case
from lightning_hangcheck.judge.verdict import aftermath_of, ended_well, with_aftermath
from lightning_hangcheck.judge.wording import name_ranks, verb
from lightning_hangcheck.look.proc import has_ended, process_ref
from lightning_hangcheck.look.sample import Look, Looker
from lightning_hangcheck.machine import is_alive
from lightning_hangcheck.model.case import Aftermath, Case, CodeNote, RankView
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.observe.discovery import patience_of
from lightning_hangcheck.observe.watched_rank import Faults, WatchedRound
from lightning_hangcheck.report.verdict_text import render_reminder
from lightning_hangcheck.session.session import place_of
from lightning_hangcheck.text.shown import NANOSECONDS, show_command, utc_now
from lightning_hangcheck.watch import link
from lightning_hangcheck.watch.incident import Incident, Shutdown, Telling
from lightning_hangcheck.watch.other_nodes import OtherNodes, meeting_of
from lightning_hangcheck.watch.pace import SlowTelling
from lightning_hangcheck.watch.roster import Roster, StartStates, describe_round
from lightning_hangcheck.watch.round_ends import EndedRounds, LeftHere
from lightning_hangcheck.watch.schedule import Schedule, figures_of
from lightning_hangcheck.watch.workers import LAPSE_NS, Metronome, Scout
from lightning_hangcheck.watch.writer import Alerting, RunFiles, Writer, rounds_so_far

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from lightning_hangcheck.identity import NodePlace
    from lightning_hangcheck.model.run import RoundStart
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir import RunFolder
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings

DISK_LIMIT_S = 5.0
SETTLED_AFTER_S = 1.0
"""How long nobody may be there before the job is over, if no launcher says so. By then the rank
that starts a sidecar has its page; torchrun, which may restart ranks, counts as being there."""
PLACE_EVERY_NS = NANOSECONDS // 2
SOON_S = 0.05
"""Pause before the next tick while a look, a scan or the writer is under way."""
UPDATE_S = 0.2
"""Pages are not read more often than this; a tick of 0.25 s that comes early still reads them."""
MOST_SEEN_CLOSER = 4
"""Culprits whose native calls are read: the facts name no more."""
LEFT_BEHIND_AFTER_S = 1.0
"""Time in which helpers of multiprocessing, and loggers, end after the command."""
UNRECORDED = Gap(
    "steps and sections",
    None,
    "its Python did not run our start-up file",
    "recording",
    "start Python without -I, -E or -S, or add HangCheck() to its callbacks",
)
STILL_THERE_NS = 10 * NANOSECONDS
"""Time after which a person who ended a job asks why it is still there."""


class Watcher:
    """Watches the ranks of one node, together with the job's other nodes, until the job is over."""

    def __init__(self, session: Session, settings: Settings, folder: RunFolder) -> None:
        self._session = session
        self._settings = settings
        self._faults = Faults()
        self._start_states = StartStates()
        self._alerting = Alerting()
        self._writer = Writer(
            folder,
            session.journals,
            self._start_states.take,
            quiet=settings.quiet,
            tell_launcher=self._tell_of_hang,
            ends_the_job=settings.on_hang != "report",
        )
        now_ns = time.monotonic_ns()
        self._metronome = Metronome(now_ns).start()
        self._scout = Scout(session)
        self._ended = EndedRounds()
        self._earlier = rounds_so_far(session)
        before = len(self._earlier)
        self._roster = Roster(session, self._scout, self._faults, now_ns, rounds_before=before)
        self._files = RunFiles(
            session, settings, self._writer, self._roster, self._start_states.offloaded
        )
        self._looker = Looker(settings.probe_timeout, session.torch_servers)
        self._limits = patience_of(settings)
        self._schedule = Schedule(settings.look_after, *figures_of(self._limits))
        self._shutdown = Shutdown()
        # other nodes
        self._nodes: OtherNodes | None = None
        self._place: NodePlace | None = None
        self._met = ""
        self._placed_ns = 0
        self._alone = False
        # how the job ends; if the launcher was killed, only we know which processes it has left
        root = process_ref(session.facts.root_pid)
        self._root_ticks = root.started_ticks if root is not None else None
        self._inbox = link.Inbox(sys.stdin.buffer) if session.facts.launched else None
        self._gone_since: float | None = None
        self._signal = ""
        self._ending = False
        self._ends_seen: tuple[object, ...] = ()
        self._said_still_there_ns = self._launcher_gone_ns = 0
        # what was read, seen and looked at last
        self._read_ns, self._updated_ns = now_ns, 0
        self._update_every_ns = int(min(settings.poll_interval, UPDATE_S) * NANOSECONDS)
        self._look_begun_ns = 0
        self._seen: tuple[object, ...] = ()
        self._unsure = False
        self._seen_closer: Verdict | None = None
        self._begin_round()

    def _begin_round(self) -> None:
        self._incident = Incident()
        self._gaps: tuple[Gap, ...] = ()
        self._code: tuple[CodeNote, ...] = ()
        self._slow = SlowTelling(self._settings, self._session.torch_servers, self._writer)
        self._schedule.calm()

    @property
    def _follows(self) -> bool:
        return self._nodes is not None and self._nodes.follows

    def run(self) -> None:
        """Watch until the job is over, report its end, and leave nothing behind."""
        ended, over = None, False
        while ended is None and not over:
            with self._faults.of("this node's place among others"):
                self._find_place(time.monotonic_ns())
            self._tick()
            with self._faults.of("what is to be told"):
                self._tell()
            with self._faults.of("the files of the run"):
                self._files.keep(self._incident, self._earlier, time.monotonic_ns())
            self._wait()
            with self._faults.of("the launcher's word"):
                ended = self._receive()
            with self._faults.of("whether the job is over"):
                over = self._over()
        with self._faults.of("how the job ended"):
            self._conclude(ended)
        self._writer.close(DISK_LIMIT_S)
        self._alerting.close()
        self._scout.close()
        self._roster.close()
        self._session.remove()  # the launcher does this, unless it was killed

    def asked_to_end(self, number: int, _: FrameType | None) -> None:
        """Signal handler: schedulers send SIGTERM to all, and the sidecar must report the end."""
        self._signal = signal.Signals(number).name

    def _tick(self) -> None:
        """Read everything once and act on it; a part that fails becomes a gap, the rest goes on."""
        now_ns = time.monotonic_ns()
        lapsed = True
        with self._faults.of("how long nobody watched"):
            lapsed = self._forgive_lapse(now_ns)
        look: Look | None = None
        failed = True
        with self._faults.of("a look"):
            look, failed = self._looker.finished(), False
        if look is not None and not look.samples:
            self._gaps, look, failed = look.gaps, None, True
        if failed:  # the next look comes as after an empty one, not at once
            suspicious = self._incident.verdict is not None
            self._schedule.looked(self._look_begun_ns, suspicious=suspicious)
        self._roster.end_asked = self._shutdown.was_asked
        if look is not None or now_ns - self._updated_ns >= self._update_every_ns:
            self._updated_ns = now_ns
            with self._faults.of("the ranks' pages and processes"):
                self._roster.update(now_ns)
        with self._faults.of("rounds that have ended"):
            self._end_left_rounds(now_ns)
        with self._faults.of("what outlived its launcher"):
            self._say_outlived(now_ns)
        if look is not None and self._look_begun_ns < self._roster.round_began_ns:
            look = None  # its ranks are those of the round before
        if look is not None:
            self._gaps, self._code = look.gaps, look.code
            with self._faults.of("what a look brought"):
                if self._session.facts.launched:
                    silent = [rank for rank in self._roster.round.alive if rank.beat is None]
                    self._gaps += tuple(
                        replace(UNRECORDED, rank=rank.found.rank) for rank in silent
                    )
                self._roster.round.add(look)
        with self._faults.of("a verdict"):
            self._judge_all(look, now_ns)
        with self._faults.of("the ranks' pace"):
            alive = self._roster.round.alive
            if not self._ending:
                self._slow.read(alive, now_ns, lapsed=lapsed)
            # each node compares its own ranks, and reports on them only while there is no alarm
            if not self._ending and self._incident.verdict is None and self._shutdown.asked is None:
                self._slow.tell(alive, now_ns, lambda: self._own_case(self._roster.round, now_ns))
        with self._faults.of("a look"):
            self._look_if_due(now_ns)
        if self._nodes is not None:
            with self._faults.of("other nodes"):
                self._share(self._nodes, now_ns, looked=look is not None)

    def _wait(self) -> None:
        hurried = self._looker.looking or self._writer.waits
        hurried = hurried or (self._scout.busy and not self._roster.round.ranks)
        seconds = SOON_S if hurried else self._settings.poll_interval
        with self._faults.of("the ends of ranks"):
            self._roster.wait(seconds)
            return
        time.sleep(seconds)

    def _end_asked(self, by: str) -> None:
        """Record that somebody asks the job to end: from now on nothing is judged anew."""
        now_ns = time.monotonic_ns()
        self._shutdown.ask(by, self._roster.round.views(now_ns), self._incident.suspected, now_ns)

    def _conclude(self, command: link.CommandEnded | None) -> None:
        """Judge the last round and report it; a proven hang is not judged anew."""
        exit_code, left_running = None, tuple[int, ...]()
        if command is not None:
            exit_code, left_running = command.exit_code, command.left_running
            self._roster.note_exit(command.pid, exit_code)
        self._looker.close()
        self._slow.close()
        deadline = time.monotonic() + LEFT_BEHIND_AFTER_S
        while left_running := tuple(pid for pid in left_running if not has_ended(pid)):
            if time.monotonic() >= deadline:
                break
            time.sleep(SOON_S)
        now_ns = time.monotonic_ns()
        with self._faults.of("the ranks' pages and processes"):
            self._roster.update(now_ns, last=True)
        with self._faults.of("rounds that have ended"):
            self._end_left_rounds(now_ns, at_once=True)
        ended = self._own_case(self._roster.round, now_ns, ended=True)
        if self._nodes is not None:
            with self._faults.of("other nodes"):
                self._nodes.tell(ended, None, ended=True)
                ended = self._nodes.join_end(ended)
                self._nodes.peers.close()
        alarm, asked = self._incident.verdict, self._shutdown.asked
        case = replace(ended, exit_code=exit_code, left_running=left_running, asked_end=asked)
        well = alarm is not None and ended_well(case)
        if well and asked is None:
            self._tell_recovery(self._incident.advances_since_ns or now_ns)
        verdict = self._verdict_of(case)
        killed = bool(self._incident.suspected) and not well and verdict.verdict == "finished"
        if alarm is not None and (self._incident.proven or killed):
            asked_ns = self._shutdown.asked_ns if asked is not None else now_ns
            self._tell_aftermath(aftermath_of(case), asked_ns)
            verdict = alarm
        else:
            telling: Telling = "line" if verdict.verdict == "finished" else "report"
            self._writer.publish(case, verdict, telling)
        watched = self._roster.round
        rounds = (*self._earlier, describe_round(watched.number, watched.started_at, verdict))
        self._files.end(
            self._incident, verdict, rounds, exit_code, "" if asked is None else asked.by
        )

    def _forgive_lapse(self, now_ns: int) -> bool:
        """Forgive silence while the sidecar, or the job, did not run; return whether there was any.

        A delay that the sidecar caused itself counts: pages say since when ranks are silent. The
        alarm's moment moves, too, or the forgiven silence would look like progress.
        """
        late_ns, self._read_ns = now_ns - self._read_ns, now_ns
        lapse_ns = self._metronome.read(now_ns)
        if late_ns - lapse_ns > LAPSE_NS:
            error = TimeoutError(f"the sidecar was held up for {late_ns / NANOSECONDS:.0f} s")
            self._faults.take("what went on meanwhile", None, error)
        if not lapse_ns and self._roster.suspended:
            lapse_ns = late_ns
        if lapse_ns:
            for rank in self._roster.round.ranks.values():
                rank.progress.forgive(lapse_ns, now_ns)
            self._incident.forgive(lapse_ns, now_ns)
        return lapse_ns > 0

    def _end_left_rounds(self, now_ns: int, *, at_once: bool = False) -> None:
        rounds, self._roster.left = self._roster.left, []
        for left, next_start in rounds:
            self._settle_rounds(now_ns, at_once=True)
            case = self._own_case(left, now_ns, ended=True, next_start=next_start)
            case = replace(case, asked_end=self._shutdown.end_round())
            hang = self._incident.verdict if self._incident.proven else None
            self._ended.leave(LeftHere(case, left.started_at, hang))
            self._slow.close()
            self._begin_round()
        self._settle_rounds(now_ns, at_once=at_once)

    def _settle_rounds(self, now_ns: int, *, at_once: bool) -> None:
        for case, verdict, ended in self._ended.settled(now_ns, at_once=at_once):
            if verdict.verdict != "finished":
                self._writer.publish(case, verdict, "line")
            self._earlier = (*self._earlier, ended)

    def _judge_all(self, look: Look | None, now_ns: int) -> None:
        ranks, alive = self._roster.round.ranks, self._roster.round.alive
        if look is None and not self._incident.proven and self._shutdown.asked is None:
            self._ending = False
        else:
            # again if a rank has ended, or says that it ends, and once a second
            ends = [
                (rank.process_exit is None, rank.beat and rank.beat.ending)
                for rank in ranks.values()
            ]
            seen = (len(ends), self._shutdown.asked_ns, now_ns // NANOSECONDS, ends)
            changed, self._ends_seen = seen != self._ends_seen, seen
            if look is not None or changed:
                self._ending = self._ends(self._roster.round.views(now_ns), now_ns)
        if self._ending:
            self._say_still_there(now_ns)
            return
        if look is not None:
            self._judge_look(look, now_ns)
        elif not self._looker.looking:
            more = not self._unsure and self._schedule.says_more(alive, now_ns)
            if self._nodes is not None and not alive:
                more = self._nodes.looked_elsewhere()  # their looks say when to judge
            if more:
                self._judge(now_ns)
        if self._incident.verdict is None or (self._follows and not self._alone):
            return
        there = self._nodes.elsewhere() if self._nodes is not None else None
        passed = self._incident.has_passed(ranks, there, now_ns)
        if passed and not self._ends(self._case(now_ns).ranks, now_ns):
            self._tell_recovery(self._incident.advances_since_ns)

    def _ends(self, ranks: Sequence[RankView], now_ns: int) -> bool:
        return self._shutdown.begun(
            ranks, proven=self._incident.proven, suspected=self._incident.suspected, now_ns=now_ns
        )

    def _judge_look(self, look: Look, now_ns: int) -> None:
        still, watched = [], self._roster.round
        of_job = {("", pid) for rank in watched.alive for pid in rank.pids}
        for rank in watched.alive:
            with self._faults.of("what it does", rank.found.rank):
                still.append(rank.note_activity(now_ns, of_job))
        # the next look, which comes soon, decides whether this was a step or a poll
        self._unsure = not self._unsure and any(rank.in_doubt for rank in watched.alive)
        if not self._unsure:
            with self._faults.of("a verdict"):
                self._judge(now_ns, closer=look.closer)
        alarm = self._incident.verdict
        seen: tuple[object, ...] = ()
        if alarm is not None:
            # changes once a rank that the alarm names moves, or the alarm becomes another
            about = {*alarm.culprits, *alarm.victims} or watched.ranks.keys()
            ranks = [rank for number, rank in watched.ranks.items() if number in about]
            marks = ((rank.progress.last_progress_ns, rank.progress.last_new_ns) for rank in ranks)
            seen = (alarm.verdict, *marks)
        moved, self._seen = seen != self._seen, seen
        self._schedule.looked(
            self._look_begun_ns,
            suspicious=alarm is not None,
            moved=moved or self._unsure,
            stood_still=any(still),
            cost_s=self._looker.cost_s,
            lasted_s=(now_ns - self._look_begun_ns) / NANOSECONDS,
        )

    def _judge(self, now_ns: int, *, closer: bool = False) -> None:
        if self._follows:
            return
        case = self._case(now_ns)
        if self._ends(case.ranks, now_ns):  # ranks of other nodes may show it
            return
        self._alone = True
        self._schedule.judged(self._roster.round.alive, now_ns)
        verdict = self._verdict_of(case)
        self._raise(case, verdict, self._incident.take(verdict, closer=closer))

    def _verdict_of(self, case: Case) -> Verdict:
        """Judge a case; if a rule fails on what looks saw, judge by the ranks' own reports."""
        with self._faults.of("what the looks show"):
            return judge(case)
        unlooked = tuple(replace(view, processes=(), flight=None) for view in case.ranks)
        gaps = (*case.gaps, *self._faults.gaps)
        return judge(replace(case, ranks=unlooked, gaps=gaps))

    def _raise(self, case: Case, verdict: Verdict, telling: Telling | None) -> None:
        if telling is None:
            return
        self._incident.raised(case)
        hang = None
        if self._incident.proven:
            self._shutdown.hang_proven(case.ranks)
            if telling in ("report", "line") and self._session.facts.launched:
                watched = self._roster.round
                ranks = ((rank.found.pid, rank.found.started_ticks) for rank in watched.alive)
                hang = link.HangProven(tuple(ranks), watched.restarts_left)
        self._writer.publish(case, verdict, telling, hang)

    def _share(self, nodes: OtherNodes, now_ns: int, *, looked: bool) -> None:
        if looked or nodes.is_due(now_ns):
            nodes.agree(self._roster.round, now_ns)
            own = self._own_case(self._roster.round, now_ns)
            nodes.tell(own, self._writer.newest)
            if self._shutdown.asked is None:
                nodes.notice_silence(own)
        verdict = nodes.news()
        if verdict is None:
            return
        case = self._case(now_ns)
        if verdict.verdict == "recovered":
            if self._incident.ended(verdict.detected_at, verdict.stalled_for_s) is not None:
                self._writer.publish(case, verdict, "line")
            return
        self._alone = False
        telling = self._incident.take(verdict)
        self._raise(case, verdict, "line" if telling == "report" else telling)

    def _tell_recovery(self, since_ns: int) -> None:
        recovered = self._incident.recovered(utc_now(), since_ns)
        if recovered is not None:
            self._writer.publish(self._case(time.monotonic_ns()), recovered, "line")

    def _tell_aftermath(self, text: str, moment_ns: int) -> None:
        raised, hang = self._incident.case, self._incident.verdict
        if raised is None or hang is None:
            return
        after_s = round(max(0, moment_ns - raised.taken_ns) / NANOSECONDS, 3)
        aftermath = Aftermath(after_s=after_s, text=text)
        case = replace(raised, aftermath=aftermath)
        # a verdict of other nodes rests on more than this node's case shows
        verdict = self._verdict_of(case) if self._alone else with_aftermath(hang, aftermath)
        self._writer.publish(case, verdict, "aftermath")

    def _say_still_there(self, now_ns: int) -> None:
        asked, since_ns = self._shutdown.asked, self._shutdown.asked_ns
        if asked is None or not self._incident.proven or self._settings.on_hang != "report":
            return
        if since_ns != self._said_still_there_ns and now_ns - since_ns >= STILL_THERE_NS:
            self._said_still_there_ns = since_ns
            pids = " ".join(str(rank.found.pid) for rank in self._roster.round.alive)
            text = f"it is still there, though asked to end by {asked.by}: kill -KILL {pids}"
            self._tell_aftermath(text, now_ns)

    def _say_outlived(self, now_ns: int) -> None:
        gone_ns, watched = self._launcher_gone_ns, self._roster.round
        if not gone_ns or now_ns - gone_ns < STILL_THERE_NS or not watched.alive:
            return
        self._launcher_gone_ns = 0
        agents = [pid for pid in sorted(watched.agents) if not has_ended(pid)]
        pids = [*agents, *(rank.found.pid for rank in watched.alive)]
        ranks = [rank.found.rank for rank in watched.alive]
        log.once(
            "outlived",
            f"hangcheck run was killed; {name_ranks(ranks)} {verb(ranks, 'runs', 'run')} on, still "
            f"watched; end what is left: kill -KILL {' '.join(map(str, pids))}",
        )

    def _look_if_due(self, now_ns: int) -> None:
        alive = self._roster.round.alive
        if self._looker.looking or self._ending or not self._schedule.due_for(alive, now_ns):
            return
        ranks = [(rank.found.rank, rank.found.pid) for rank in alive]
        alarm, closer = self._incident.verdict, tuple[int, ...]()
        # local variables on request only, and of culprits only
        values = alarm.culprits if self._settings.locals and alarm is not None else ()
        if alarm is not None and self._incident.proven and alarm is not self._seen_closer:
            # native calls cost a pause: only of ranks that a hang names, and once a verdict
            self._seen_closer, closer = alarm, alarm.culprits[:MOST_SEEN_CLOSER]
        self._look_begun_ns = now_ns
        self._looker.begin(lambda: self._scout.targets(ranks), values, closer)

    def _case(self, now_ns: int) -> Case:
        case = self._own_case(self._roster.round, now_ns)
        return case if self._nodes is None else self._nodes.join(case)

    def _own_case(
        self,
        watched: WatchedRound,
        now_ns: int,
        *,
        ended: bool = False,
        next_start: RoundStart | None = None,
    ) -> Case:
        session = self._session
        command, words = session.facts.command, watched.guessed_words
        if not session.facts.launched and watched.is_guess_a_launcher and isinstance(words, list):
            command = show_command(words)
        run_id, started_at = session.run_folder.run_id, session.facts.started_at
        facts = watched.facts(run_id, command, started_at, place_of(session))
        views = watched.views(now_ns)
        case = Case(
            run=replace(facts, earlier=self._earlier, next_start=next_start),
            ranks=views,
            gaps=(*self._gaps, *self._metronome.gaps, *self._faults.gaps, *self._writer.gaps),
            code=self._code,
            limits=self._limits,
            taken_at=utc_now(),
            taken_ns=now_ns,
            ended=ended,
        )
        return complete_case(case)

    # Other nodes, reports, and the end of the job

    def _find_place(self, now_ns: int) -> None:
        known, files = self._place, self._files
        if not self._placed_ns or now_ns - self._placed_ns >= PLACE_EVERY_NS:
            self._placed_ns = now_ns
            place = place_of(self._session)
            # the number of ranks here means nothing to the other nodes
            if place is not None and known is not None:
                news = place._replace(ranks=known.ranks) != known
            else:
                news = place is not None and place.nnodes != 1
            if place is not None and news:
                self._place = place
                meeting = meeting_of(place, self._settings)
                self._met = files.meeting = meeting.description
                files.node = place.number
                if self._nodes is not None:
                    self._nodes.peers.close()
                self._nodes = OtherNodes(place, meeting.places) if meeting.places else None
                self._ended.meet(self._nodes)
                if meeting.way_out and not self._settings.quiet:
                    log.once(
                        "nowhere to meet",
                        f"the nodes of this job meet {meeting.description}; each gives a verdict "
                        f"of its own; {meeting.way_out}",
                    )
        nodes = self._nodes
        if nodes is not None and nodes.peers.moved:
            moved = f"{nodes.peers.where}, since a node lost the store"
            files.meeting = f"{moved}; first {self._met}"

    def _tell(self) -> None:
        alarm, now_ns = self._incident, time.monotonic_ns()
        self._writer.watch_storage()
        self._writer.tell(stands=alarm.proven, alone=self._nodes is None)
        stood_s = alarm.reminder(now_ns, wanted=self._shutdown.asked is None)
        if alarm.verdict is not None and stood_s is not None:
            folder = str(self._writer.folder.path)
            self._writer.say(render_reminder(alarm.verdict, stood_s, folder))
        if self._settings.console != "off":
            pids = {rank.found.rank: rank.found.pid for rank in self._roster.round.alive}
            news = self._start_states.news(pids, now_ns)
            if news is not None:
                self._writer.say(news)

    def _receive(self) -> link.CommandEnded | None:
        if self._signal:
            self._end_asked(f"{self._signal} (sent to the sidecar, too)")
            log.once(
                "told to end", f"the sidecar got {self._signal}: it ends with the job, not before"
            )
            self._signal = ""
        inbox = self._inbox
        gone = inbox is not None and inbox.ended.is_set()
        while inbox is not None and (message := inbox.next()) is not None:
            if isinstance(message, link.CommandEnded):
                return message
            if isinstance(message, link.EndAsked):
                self._end_asked(message.by)
            elif isinstance(message, AlertsAskedFor):
                self._alerting.asked_for = message
        if gone:
            self._inbox, self._launcher_gone_ns = None, time.monotonic_ns()
        return None

    def _over(self) -> bool:
        """Whether, without a launcher's message, all ranks are gone and none has come back.

        A launcher that restarts failed ranks may still be there, and do so.
        """
        roster, facts, ticks = self._roster, self._session.facts, self._root_ticks
        goes_on = self._inbox is not None or roster.anyone_there
        if not goes_on and facts.restarts and ticks is not None:
            goes_on = is_alive(facts.root_pid, ticks) and roster.round.may_be_followed
        if goes_on:
            self._gone_since = None
            return False
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        return now - self._gone_since >= SETTLED_AFTER_S

    def _tell_of_hang(self, word: link.HangProven, verdict: Verdict, number: int | None) -> None:
        """Inform the launcher; of several nodes only the judging node sends alerts."""
        link.send(sys.stdout.buffer, word)
        if not self._follows:
            self._alerting.tell(verdict, str(self._writer.folder.path), number)
