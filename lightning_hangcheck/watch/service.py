"""The life of a sidecar process: watch, tell the end, clean up."""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.alerts.asked_for import AlertsAskedFor
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.machine.process_stat import is_alive
from lightning_hangcheck.probes.proc.process_tree import process_ref
from lightning_hangcheck.session.run_folders import (
    CLAIMED_WITHIN_S,
    settle_elsewhere,
    settle_run_folder,
)
from lightning_hangcheck.session.session import Session, taken_sessions_folder
from lightning_hangcheck.watch.hidden_ranks import SrunInFront
from lightning_hangcheck.watch.loop import Watcher
from lightning_hangcheck.watch.messages import (
    CommandEnded,
    EndAsked,
    HangProven,
    Inbox,
    LauncherGone,
    send,
)
from lightning_hangcheck.watch.other_nodes.among_nodes import among_nodes
from lightning_hangcheck.watch.other_nodes.late_place import LatePlace
from lightning_hangcheck.watch.other_nodes.meeting_choice import why_moved, why_there
from lightning_hangcheck.watch.ranks.rounds import describe_round
from lightning_hangcheck.watch.ranks.run_ledger import RunLedger
from lightning_hangcheck.watch.ranks.run_recorder import RunRecorder, rounds_so_far
from lightning_hangcheck.watch.ranks.start_states import StartStates
from lightning_hangcheck.watch.telling.alerting import Alerting
from lightning_hangcheck.watch.telling.hang_telling import HangTelling
from lightning_hangcheck.watch.telling.metrics_keeper import MetricsKeeper
from lightning_hangcheck.watch.telling.note_keeper import NoteKeeper
from lightning_hangcheck.watch.telling.publishing import Publisher
from lightning_hangcheck.watch.telling.reminders import Reminders

if TYPE_CHECKING:
    import threading
    from types import FrameType

    from lightning_hangcheck.model.run import NodePlace
    from lightning_hangcheck.rundir.layout import RunFolder
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.other_nodes.among_nodes import AmongNodes

DISK_LIMIT_S = 5.0
SETTLE_LIMIT_S = CLAIMED_WITHIN_S + 1.0
"""Looking at the folder takes milliseconds, the patience with another node's claim included."""
SETTLED_AFTER_S = 1.0
"""How long everybody must be gone before the job counts as over, where no launcher says so. The
rank that starts a sidecar has its page by then, and torchrun, which may start ranks again, counts
as somebody."""


class Service:
    """Watches one session from start to end."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        self._settings = settings
        self._start_states = StartStates()
        folder = _settle(session)
        self._publisher = Publisher(
            folder, session.journals, self._start_states.take, quiet=settings.quiet
        )
        self._reminders = Reminders()
        self._record = RunRecorder(session)
        self._ledger = RunLedger(session, settings)
        self._watcher = Watcher(
            session,
            settings,
            self._publisher,
            self._hang_proven,
            rounds_so_far(session),
        )
        self._place = LatePlace(session, settings)
        self._srun_in_front = SrunInFront(session)
        self._met: NodePlace | None = None
        self._nodes: AmongNodes | None = None
        self._notes = NoteKeeper(session)
        self._metrics = MetricsKeeper(settings.prometheus)
        root = process_ref(session.facts.root_pid)
        self._root_ticks = root.started_ticks if root is not None else None
        self._inbox = Inbox(sys.stdin.buffer) if session.facts.launched else None
        self._gone_since: float | None = None
        self._signal = ""
        self._hang = HangTelling(ends_the_job=settings.on_hang != "report")
        self._alerting = Alerting(session)

    def run(self) -> None:
        """Watch until the job is over, tell its end, and leave nothing behind."""
        ended = None
        self._publisher.save(self._ledger.look_around)
        while ended is None and not self._over():
            self._find_place(time.monotonic_ns())
            self._watcher.tick()
            self._publisher.watch_storage()
            self._tell_of_hang()
            self._tell_of_start()
            self._tell_of_srun()
            self._remind()
            self._keep_notes(time.monotonic_ns())
            self._record.clocks = self._watcher.clocks
            record = self._record.update(self._watcher.roster, self._watcher.earlier)
            if record is not None:
                self._publisher.save(partial(self._record.write, record))
            ended = self._receive()
        self._conclude(ended)
        self._publisher.close(DISK_LIMIT_S)
        self._tell_it()
        self._alerting.close()
        self._watcher.roster.close()
        if self._inbox is None:
            self._session.remove()
        else:
            self._session.sidecar_file.unlink(missing_ok=True)

    def told_to_end(self, number: int, _: FrameType | None) -> None:
        """Signal handler: schedulers send SIGTERM to everybody, and we must tell the end."""
        self._signal = signal.Signals(number).name

    def _find_place(self, now_ns: int) -> None:
        """Join the other nodes once it is known which of them this is."""
        place = self._place.news(now_ns)
        if place is not None:
            self._record.meeting = why_there(place, self._settings)
            self._met, self._record.node = place, place.number
            self._nodes = among_nodes(place, self._settings, now_ns)
            self._watcher.meet(self._nodes)
        moved_to = self._watcher.moved_to
        if self._met is not None and moved_to:
            self._record.meeting = why_moved(self._met, self._settings, moved_to)

    def _keep_notes(self, now_ns: int) -> None:
        roster, standing = self._watcher.roster, self._watcher.alarm.standing
        self._notes.update(roster, self._publisher, now_ns)
        self._metrics.update(roster, standing, self._publisher, now_ns)

    def _receive(self) -> CommandEnded | None:
        """Take what came since: the launcher's messages, and signals that reached ourselves."""
        if self._signal:
            self._watcher.end_asked(f"{self._signal} (sent to the sidecar, too)")
            log.once(
                "told to end", f"the sidecar got {self._signal}: it ends with the job, not before"
            )
            self._signal = ""
        while self._inbox is not None and (message := self._inbox.next()) is not None:
            if isinstance(message, CommandEnded):
                return message
            if isinstance(message, EndAsked):
                self._watcher.end_asked(message.by)
            elif isinstance(message, AlertsAskedFor):
                self._alerting.take(message)
            elif isinstance(message, LauncherGone):
                self._inbox = None
                self._watcher.launcher_gone()
        return None

    def _over(self) -> bool:
        """Without a launcher's word: everybody who was there is gone, and nobody came back."""
        roster = self._watcher.roster
        if self._inbox is not None or roster.anyone_there or self._may_start_again():
            self._gone_since = None
            return False
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        return now - self._gone_since >= SETTLED_AFTER_S

    def _may_start_again(self) -> bool:
        """Whether a launcher that starts failed ranks again is still there, and will do so."""
        facts, watched = self._session.facts, self._watcher.roster.round
        if not facts.restarts or self._root_ticks is None:
            return False
        return watched.may_be_followed and is_alive(facts.root_pid, self._root_ticks)

    def _conclude(self, ended: CommandEnded | None) -> None:
        roster = self._watcher.roster
        if ended is not None:
            roster.round.note_exit(ended.pid, ended.exit_code)
        exit_code = ended.exit_code if ended is not None else None
        left_running = ended.left_running if ended is not None else ()
        verdict = self._watcher.conclude(exit_code, left_running)
        last = describe_round(roster.round.number, roster.round.started_at, verdict)
        asked = self._watcher.shutdown.asked
        ended_by = asked.by if asked is not None else ""
        record = self._record.end(roster, (*self._watcher.earlier, last), exit_code, ended_by)
        self._publisher.save(partial(self._record.write, record))
        stalls = self._publisher.stalls.ended(time.monotonic_ns())
        line = self._ledger.line(roster, verdict, exit_code, stalls)
        self._publisher.save(partial(self._ledger.write, line))
        self._metrics.end(roster, verdict, self._publisher, exit_code)

    def _hang_proven(self) -> None:
        if self._session.facts.launched:
            watched = self._watcher.roster.round
            ranks = ((rank.found.pid, rank.found.started_ticks) for rank in watched.alive)
            word = HangProven(tuple(ranks), watched.restarts_left)
            saved = self._hang.prove(word, self._publisher.newest, time.monotonic())
            self._publisher.save(partial(self._note_saved, saved))

    def _note_saved(self, saved: threading.Event) -> None:
        self._hang.saved_as = self._publisher.saved
        saved.set()

    def _tell_of_hang(self) -> None:
        if not self._hang.waits:
            return
        known = self._nodes is None or self._nodes.all_know(self._hang.verdict)
        if self._hang.is_due(time.monotonic(), stands=self._watcher.alarm.proven, known=known):
            self._tell_it()

    def _tell_it(self) -> None:
        """Tell the launcher; of several nodes only the one that judges alerts anybody else."""
        if not self._hang.waits:
            return
        self._hang.told()
        send(sys.stdout.buffer, self._hang.word)
        if self._hang.verdict is not None and not self._watcher.follows:
            run_dir = str(self._publisher.folder.path)
            self._alerting.tell(self._hang.verdict, run_dir, self._hang.saved_as)

    def _remind(self) -> None:
        """Say now and then that a verdict still stands, but not while the job is asked to end."""
        standing = self._watcher.alarm.standing
        kind = None
        if standing is not None and self._watcher.shutdown.asked is None:
            kind = standing.verdict
        stood_s = self._reminders.due(kind, time.monotonic_ns())
        if standing is not None and stood_s is not None:
            self._publisher.remind(standing, stood_s)

    def _tell_of_srun(self) -> None:
        if not self._settings.quiet:
            roster = self._watcher.roster
            seen = bool(roster.ranks) or roster.anyone_there
            self._srun_in_front.look(time.monotonic_ns(), ranks_seen=seen)

    def _tell_of_start(self) -> None:
        """Show what differs between the ranks, as soon as they have said what they stand in."""
        if self._settings.console == "off":
            return
        pids = {rank.found.rank: rank.found.pid for rank in self._watcher.roster.alive}
        news = self._start_states.news(pids, time.monotonic_ns())
        if news is not None:
            self._publisher.say(news)


def _settle(session: Session) -> RunFolder:
    """Agree on the run folder, and say once a node what is not as it should be."""
    if (taken := taken_sessions_folder()) is not None:
        log.once("sessions", taken)
    try:
        try:
            settled = apart(SETTLE_LIMIT_S, partial(settle_run_folder, session))
        except NoAnswerFromStorage as error:
            settled = settle_elsewhere(session, error)
    except (OSError, UnpreparedRunFolder) as error:
        log.once("run folder", f"verdicts are printed but not saved: {error}")
        return session.run_folder
    if settled.trouble:
        log.once("run folder", settled.trouble)
    return settled.folder
