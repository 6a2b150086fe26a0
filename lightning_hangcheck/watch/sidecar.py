"""The sidecar as a program, with a session's folder: started by `link`, never by hand.

It watches until the job is over, tells the end, and leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.alerts.messenger import AlertsAskedFor
from lightning_hangcheck.errors import HangcheckError, UnpreparedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart, let_go_of_streams
from lightning_hangcheck.files.safe import PRIVATE_FILE, write_atomically
from lightning_hangcheck.look.proc import process_ref
from lightning_hangcheck.machine import is_alive
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.observe.watched_rank import Faults
from lightning_hangcheck.report.start_report import render_start
from lightning_hangcheck.report.verdict_text import render_reminder
from lightning_hangcheck.rundir import parse_journal
from lightning_hangcheck.session.run_folders import (
    CLAIMED_WITHIN_S,
    settle_elsewhere,
    settle_run_folder,
)
from lightning_hangcheck.session.session import (
    Session,
    SidecarFacts,
    read_session,
    taken_sessions_folder,
)
from lightning_hangcheck.session.whose import place_of
from lightning_hangcheck.settings import from_environment
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.watch.link import (
    CommandEnded,
    EndAsked,
    Inbox,
    LauncherGone,
    send,
)
from lightning_hangcheck.watch.loop import Watcher
from lightning_hangcheck.watch.other_nodes.among_nodes import (
    AmongNodes,
    Meeting,
    meeting_of,
)
from lightning_hangcheck.watch.roster import describe_round
from lightning_hangcheck.watch.run_files import RunFiles, rounds_so_far
from lightning_hangcheck.watch.writer import Alerting, Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from lightning_hangcheck.model.run import NodePlace
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir import RunFolder
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.link import HangProven

DISK_LIMIT_S = 5.0
SETTLE_LIMIT_S = CLAIMED_WITHIN_S + 1.0
"""Looking at the folder takes milliseconds, the patience with another node's claim included."""
MOST_DESCRIPTORS = 65_536
"""Allowed to the sidecar, if the hard limit has room: a rank takes five and more, and 192 ranks had
all of the 1,024 that are a common soft limit."""
SETTLED_AFTER_S = 1.0
"""How long everybody must be gone before the job counts as over, where no launcher says so. The
rank that starts a sidecar has its page by then, and torchrun, which may start ranks again, counts
as somebody."""


PLACE_EVERY_NS = NANOSECONDS // 2
STATE_KIND = b'"kind":"state"'
PATIENCE_NS = 10 * NANOSECONDS
"""Ranks leave their process group's making within a second of each other, unless one hangs."""


class _Said(msgspec.Struct, frozen=True):
    """A journal's line of this kind."""

    pid: int
    facts: dict[str, str]


class StartStates:
    """Compares what ranks say at their start, once for each set of processes."""

    def __init__(self) -> None:
        self._states: dict[int, dict[str, str]] = {}
        self._shown: set[int] = set()
        self._since_ns: int | None = None

    def take(self, lines: bytes) -> None:
        """Look through lines of a journal on their way to the disk, in whatever thread has them."""
        if STATE_KIND not in lines:
            return
        for entry in parse_journal(lines)[0]:
            if entry.get("kind") == "state":
                try:
                    said = msgspec.convert(entry, _Said)
                except msgspec.ValidationError:  # of another version of this package
                    continue
                self._states[said.pid] = said.facts

    def news(self, pids: Mapping[int, int], now_ns: int) -> str | None:
        """Return the report of ranks once all have spoken, or have had the time for it."""
        told = {rank: self._states[pid] for rank, pid in pids.items() if pid in self._states}
        if not told or not self._shown.isdisjoint(pids.values()):
            return None
        self._since_ns = self._since_ns or now_ns
        if len(told) < len(pids) and now_ns - self._since_ns < PATIENCE_NS:
            return None
        self._shown, self._since_ns = set(pids.values()), None
        return render_start(told, pids.keys() - told.keys())


class Sidecar:
    """Watches one session from start to end."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        self._settings = settings
        self._faults = Faults()
        self._start_states = StartStates()
        self._alerting = Alerting()
        self._writer = Writer(
            _settle(session),
            session.journals,
            self._start_states.take,
            quiet=settings.quiet,
            tell_launcher=self._tell_of_hang,
            ends_the_job=settings.on_hang != "report",
        )
        self._files = RunFiles(session, settings, self._writer)
        self._watcher = Watcher(
            session, settings, self._writer, self._faults, rounds_so_far(session)
        )
        self._place: NodePlace | None = None
        self._meeting: Meeting | None = None
        self._placed_ns = 0
        root = process_ref(session.facts.root_pid)
        self._root_ticks = root.started_ticks if root is not None else None
        self._inbox = Inbox(sys.stdin.buffer) if session.facts.launched else None
        self._gone_since: float | None = None
        self._signal = ""

    def run(self) -> None:
        """Watch until the job is over, tell its end, and leave nothing behind."""
        ended, over = None, False
        while ended is None and not over:
            with self._faults.of("this node's place among others"):
                self._find_place()
            self._watcher.tick()
            with self._faults.of("what is to be told"):
                self._tell()
            with self._faults.of("the files of the run"):
                watcher, now_ns = self._watcher, time.monotonic_ns()
                self._files.keep(watcher.roster, watcher.alarm, watcher.earlier, now_ns)
            self._watcher.wait()
            with self._faults.of("the launcher's word"):
                ended = self._receive()
            with self._faults.of("whether the job is over"):
                over = self._over()
        with self._faults.of("how the job ended"):
            watcher, roster = self._watcher, self._watcher.roster
            if ended is not None:
                roster.note_exit(ended.pid, ended.exit_code)
            exit_code = ended.exit_code if ended is not None else None
            verdict = watcher.conclude(exit_code, ended.left_running if ended is not None else ())
            last = describe_round(roster.round.number, roster.round.started_at, verdict)
            asked, rounds = watcher.shutdown.asked, (*watcher.earlier, last)
            ended_by = "" if asked is None else asked.by
            self._files.end(roster, watcher.alarm, verdict, rounds, exit_code, ended_by)
        self._writer.close(DISK_LIMIT_S)
        self._alerting.close()
        self._watcher.close()
        self._session.remove()  # a launcher may have been killed that would do it

    def told_to_end(self, number: int, _: FrameType | None) -> None:
        """Signal handler: schedulers send SIGTERM to everybody, and we must tell the end."""
        self._signal = signal.Signals(number).name

    def _find_place(self) -> None:
        """Join the other nodes once it is known which of them this is, and when it is another."""
        now_ns, known = time.monotonic_ns(), self._place
        if not self._placed_ns or now_ns - self._placed_ns >= PLACE_EVERY_NS:
            self._placed_ns = now_ns
            place = place_of(self._session)
            if place is not None and known is not None:
                # how many ranks run here changes nothing for the other nodes
                place = place if replace(place, ranks=known.ranks) != known else None
            elif place is not None and place.nnodes == 1:
                place = None
            if place is not None:
                self._place = place
                self._meet(place)
        nodes = self._watcher.nodes
        if nodes is None:
            return
        if self._meeting is not None and nodes.peers.moved:
            moved = f"{nodes.peers.where}, since a node lost the store; first {self._meeting.told}"
            self._files.meeting = moved
        self._files.clocks = nodes.peers.clocks

    def _meet(self, place: NodePlace) -> None:
        self._meeting = meeting = meeting_of(place, self._settings)
        self._files.meeting, self._files.node = meeting.told if meeting else "", place.number
        places = meeting.places if meeting else ()
        self._watcher.meet(AmongNodes(place, places) if places else None)
        if meeting is not None and not places and not self._settings.quiet:
            log.once(
                "nowhere to meet",
                f"the nodes of this job meet {meeting.told}; each gives a verdict of its own; "
                f"{meeting.way_out}",
            )

    def _tell(self) -> None:
        """Tell what is saved by now, what stands for long, and how the ranks began."""
        alarm, nodes = self._watcher.alarm, self._watcher.nodes
        self._writer.watch_storage()
        self._writer.tell(
            stands=alarm.proven, known=lambda verdict: nodes is None or nodes.all_know(verdict)
        )
        wanted = self._watcher.shutdown.asked is None
        stood_s = alarm.reminder(time.monotonic_ns(), wanted=wanted)
        if alarm.standing is not None and stood_s is not None:
            folder = str(self._writer.folder.path)
            self._writer.say(render_reminder(alarm.standing, stood_s, folder))
        if self._settings.console != "off":
            pids = {rank.found.rank: rank.found.pid for rank in self._watcher.roster.alive}
            news = self._start_states.news(pids, time.monotonic_ns())
            if news is not None:
                self._writer.say(news)

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
                self._alerting.asked_for = message
            elif isinstance(message, LauncherGone):
                self._inbox = None
                self._watcher.launcher_gone_ns = time.monotonic_ns()
        return None

    def _over(self) -> bool:
        """Without a launcher's word: everybody who was there is gone, and nobody came back.

        A launcher that starts failed ranks again may still be there, and do so.
        """
        roster, facts = self._watcher.roster, self._session.facts
        launcher = facts.restarts and self._root_ticks is not None
        if (
            self._inbox is not None
            or roster.anyone_there
            or (
                launcher
                and is_alive(facts.root_pid, self._root_ticks or 0)
                and roster.round.may_be_followed
            )
        ):
            self._gone_since = None
            return False
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        return now - self._gone_since >= SETTLED_AFTER_S

    def _tell_of_hang(self, word: HangProven, verdict: Verdict, number: int | None) -> None:
        """Tell the launcher; of several nodes only the one that judges alerts anybody else."""
        send(sys.stdout.buffer, word)
        if not self._watcher.follows:
            self._alerting.tell(verdict, str(self._writer.folder.path), number)


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


def main(arguments: Sequence[str]) -> int:
    """Watch one session. What goes wrong ends the watching with one sentence, never the job."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher holds its signals back
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = _say_failed_thread
    os.set_blocking(sys.stdout.fileno(), False)  # a stopped launcher holds up nobody
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    folder = Path(arguments[0])
    try:
        session = read_session(folder)
        if not session.facts.launched:
            _leave_starter()
        # the one sidecar of this session, for as long as this process lives: a round may ask for
        # one while that of the round before is only being replaced
        lock = os.open(session.watch_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        log.start_writer()
        # named in the session, so that ranks allow it to read them and see its end
        me = process_ref(os.getpid())
        facts = SidecarFacts(pid=os.getpid(), started_ticks=me.started_ticks if me else 0)
        write_atomically(session.sidecar_file, encode(facts))
    except (HangcheckError, OSError) as error:
        if not folder.exists():  # the job has ended already: its last rank freed what was shared
            return 0
        log.once("sidecar", f"the run is not watched: {error}")
        return 2
    try:
        sidecar = Sidecar(session, from_environment(os.environ))
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, sidecar.told_to_end)
        sidecar.run()
    except Exception as error:  # noqa: BLE001 - the sidecar's boundary: say it, leave the job alone
        log.once("sidecar", f"the sidecar failed, the run is no longer watched: {error!r}")
        return 1
    return 0


def _say_failed_thread(failed: threading.ExceptHookArgs) -> None:
    name = failed.thread.name if failed.thread is not None else "a thread"
    log.once(f"thread {name}", f"{name} of the sidecar failed ({failed.exc_value!r})")


def _leave_starter() -> None:
    """Be no child of the rank that started us: its launcher may end that with all its children.

    Ray's workers do so as they exit (ray 2.60, RAY_kill_child_processes_on_worker_exit), and how
    the job ended would stay unsaid.
    """
    if os.fork():
        os._exit(0)


def _leave_at_once(exit_code: int) -> None:
    """End without waiting for threads of a look that is under way, nor for what they started."""
    log.finish(log.LAST_WORDS_S)
    let_go_of_streams()
    for child in psutil.Process().children():
        child.kill()
    os._exit(exit_code)


if __name__ == "__main__":
    _leave_at_once(main(sys.argv[1:]))
