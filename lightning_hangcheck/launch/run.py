"""`hangcheck run`: starts the sidecar and the command, and stays out of the way.

The command is our child: started unchanged, passed signals, reaped, aborted. The run folder is the
named one, one below it for each further node of a job, or a temporary one. `unstartable` is the
error of all subcommands for a command that cannot be started.
"""

from __future__ import annotations

import ctypes
import errno
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck import log, rundir
from lightning_hangcheck.alerts import AT_THE_END_S, AlertsAskedFor
from lightning_hangcheck.errors import BadUsage, UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.files import (
    EVIDENCE_BYTES,
    NoAnswerFromStorage,
    apart,
    is_apart,
    read_fact,
)
from lightning_hangcheck.identity import NodePlace, identify
from lightning_hangcheck.judge.wording import shell_code
from lightning_hangcheck.look.proc import descendants, has_ended
from lightning_hangcheck.machine import NoRoom, is_alive, require_room
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.report.paragraphs import LONGEST_COMMAND, fit
from lightning_hangcheck.session.journal_carrier import Carrier
from lightning_hangcheck.session.run_folders import kept_instead, temporary_run_folder
from lightning_hangcheck.session.session import (
    SESSION_VARIABLE,
    Session,
    SessionFacts,
    new_key,
    open_session,
    session_folder,
)
from lightning_hangcheck.settings import PREFIX, Settings, environment_with
from lightning_hangcheck.text.shown import show_command, utc_now
from lightning_hangcheck.watch import link

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


ABORTED = 75
ASKED_BY_US = "hangcheck run ("
DISK_LIMIT_S = 1.0
"""The command waits this long at most: beside the start of torch, no user notices a second."""
SCHEDULERS = (
    "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "PBS_JOBID", "LSB_JOBID", "AWS_BATCH_JOB_ID",
)  # fmt: skip
"""Set by schedulers, which may restart a job with the same command while nobody watches."""
POLL_S = 0.2
KILLED_WITHIN_S = 10.0
MOST_STARTS = 4
END_LIMIT_S = 0.5
"""For work that takes milliseconds unless storage stalls."""
CONCLUSION_LIMIT_S = 15.0
"""Time for the last verdict: one look at all ranks, and a disk that may be slow."""


def run_command(
    command: Sequence[str],
    settings: Settings,
    extra_environment: Mapping[str, str],
    alerts: AlertsAskedFor,
    node: NodePlace | None,
    job: str,
    store: tuple[str, int],
) -> int:
    """Run a launcher unchanged, watched from outside.

    ``node``, ``job`` (its name on all nodes) and ``store`` (host and port where the launchers meet)
    are what the command says of a job of several nodes. Returns the command's exit code (128 plus
    the signal's number if a signal killed it), or 75 if it was ended because of a hang. BadUsage if
    it cannot be started, UsedRunFolder if the folder holds another run and no scheduler started us.
    """
    refuse_unstartable(command)
    if settings.disable:
        os.environ[f"{PREFIX}DISABLE"] = "1"
        become(command)
    try:
        require_room(link.TASKS)
    except NoRoom as refusal:
        log.once("room", f"the command runs unwatched, it may need all that is left: {refusal}")
        become(command)
    # blocked, so that `Signals` can take them
    mask, session = set(signal.pthread_sigmask(signal.SIG_BLOCK, HELD)), None
    try:
        shown, started_at = show_command(command), utc_now()
        record = RunRecord(run_id="", command=shown, started_at=started_at, job=job)
        # so early, NODE_RANK is all that tells the node of a job that Lightning starts
        number = identify(os.environ).node_rank if node is None else node.number
        scheduled = any(name in os.environ for name in SCHEDULERS)
        folder = take_run_folder(settings.run_dir, record, number or 0, scheduled=scheduled)
        log.start_writer()
        facts = SessionFacts(
            run_dir=str(folder.path),
            command=shown,
            started_at=started_at,
            root_pid=os.getpid(),
            launched=True,
            job=job,
            node=node,
            store=store,
        )
        environment = environment_with(os.environ, settings)
        try:
            session = open_session(session_folder(new_key()), facts)
        except (OSError, UnreadableRun) as error:
            unusable = f"shared memory cannot be used ({error}); the command runs, but unwatched"
            log.once("session", unusable)
        else:
            environment |= {**extra_environment, SESSION_VARIABLE: str(session.path)}
            if not settings.quiet:
                log.once(
                    "start", f"watching {fit(shown, LONGEST_COMMAND)}; run folder {folder.path}"
                )
        program, *words = (PurePath(word).name for word in command)
        if program == "srun" and "hangcheck" not in words and "lightning_hangcheck" not in words:
            log.once(
                "srun in front",
                "srun starts its tasks outside of this command, so no rank is seen; put hangcheck "
                "behind it, so that each node watches its own: srun hangcheck run -- python "
                "train.py",
            )
        signals = Signals(HELD)
        try:
            started = Job(command, environment, mask)
        except BadUsage:
            with suppress(NoAnswerFromStorage, OSError):  # it holds no run
                apart(END_LIMIT_S, folder.run_file.unlink)
            raise
        return _Run(started, session, settings, alerts).until_ended(signals)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if session is not None:
            session.remove()
        log.finish(log.LAST_WORDS_S)


class _Run:
    """The job, one sidecar at a time, and the pipes to it; no sidecar without a session."""

    def __init__(
        self, job: Job, session: Session | None, settings: Settings, alerts: AlertsAskedFor
    ) -> None:
        self._job = job
        self._session = session
        self._settings = settings
        self._alerts = alerts
        self._starts = 0
        self._asked_to_end: link.EndAsked | None = None
        self._inbox: link.Inbox | None = None
        self._kill_at: float | None = None  # when SIGKILL follows SIGTERM, for a hung job
        self._start_sidecar()

    def until_ended(self, signals: Signals) -> int:
        while self._goes_on():
            taken = signals.next(POLL_S)
            if taken is not None and taken.number != signal.SIGCHLD:
                if taken.asks_for_end:
                    self._end_asked(taken.by)
                if taken.hangs_up:
                    self._job.hang_up()
                elif not taken.from_kernel:
                    self._job.pass_on(taken.number)
            self._job.reap()
            self._keep_sidecar_alive()
            proven = None
            while self._inbox is not None and (message := self._inbox.next()) is not None:
                proven = message if isinstance(message, link.HangProven) else proven
            if proven is not None and self._kill_at is None:
                self._act_on(proven)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                for pid in self._job.processes():
                    send_signal(pid, signal.SIGKILL)
        self._job.reap()  # pid 1 of a container may not reap what ended since
        exit_code = -signal.SIGKILL if self._job.exit_code is None else self._job.exit_code
        self._conclude(link.CommandEnded(self._job.pid, exit_code, tuple(self._job.processes())))
        return ABORTED if self._kill_at is not None else shell_code(exit_code)

    def _goes_on(self) -> bool:
        """Whether the job runs. If we end it: until its last process ends, or SIGKILL fails."""
        if self._kill_at is None:
            return self._job.exit_code is None
        if time.monotonic() >= self._kill_at + KILLED_WITHIN_S:
            log.once("hopeless", "parts of the job do not end on SIGKILL (state D?); leaving them")
            return False
        return self._job.exit_code is None or bool(self._job.processes())

    def _act_on(self, hang: link.HangProven) -> None:
        action = self._settings.on_hang
        if action == "report":
            return
        if action == "restart" and hang.restarts_left and self._asked_to_end is None:
            log.once(
                f"restart {hang.ranks}",
                "the ranks are ended because of the hang (--on-hang restart): SIGKILL now, and "
                f"torchrun starts them again (restarts left before this one: {hang.restarts_left})",
            )
            end_ranks(hang.ranks)
            return
        if action == "restart":
            why = "the job was asked to end"
            if hang.restarts_left is None:
                why = "no torchrun started them (torchrun --max-restarts=3 would do so three times)"
            elif not hang.restarts_left:
                why = "torchrun has no restart left (--max-restarts)"
            log.once("no restart", f"the ranks are not started again: {why}")
        grace_s, option = self._settings.abort_grace, f"--on-hang {action}"
        log.once(
            "abort",
            f"the job is ended because of the hang ({option}): SIGTERM now, SIGKILL to what "
            f"is left after {grace_s:g} s; exit code {ABORTED}",
        )
        # tell the sidecar first: what ranks do on SIGTERM is no recovery
        self._end_asked(f"{ASKED_BY_US}{option})")
        self._job.pass_on(signal.SIGTERM)
        self._kill_at = time.monotonic() + grace_s

    # The sidecar

    def _start_sidecar(self) -> None:
        if self._session is None:
            return
        self._starts += 1
        try:
            sidecar = self._job.sidecar = link.start_linked_sidecar(self._session, self._settings)
        except OSError as error:
            log.once("sidecar", f"no sidecar can be started ({error}); training goes on unwatched")
            return
        if sidecar.stdout is not None:
            self._inbox = link.Inbox(sidecar.stdout)
        if self._alerts.any:
            self._tell(self._alerts)
        if self._asked_to_end is not None:
            self._tell(self._asked_to_end)

    def _keep_sidecar_alive(self) -> None:
        sidecar = self._job.sidecar
        if sidecar is None or sidecar.poll() is None:
            return
        pid, self._job.sidecar = sidecar.pid, None
        if self._starts >= MOST_STARTS:
            log.once("sidecar given up", "the sidecar keeps dying; training goes on unwatched")
            return
        ended = f"the sidecar (pid {pid}) ended with code {sidecar.returncode}"
        log.once(f"sidecar {pid}", f"{ended}; training goes on, a new one starts")
        self._start_sidecar()

    def _end_asked(self, by: str) -> None:
        self._asked_to_end = self._asked_to_end or link.EndAsked(by)
        self._tell(link.EndAsked(by))

    def _conclude(self, ended: link.CommandEnded) -> None:
        """Tell the sidecar how the command ended; wait, within a limit, for its last verdict.

        The sidecar may need longer to end: stalled storage blocks a process that writes to it.
        """
        session, sidecar = self._session, self._job.sidecar
        if session is None:
            return
        if sidecar is None or self._inbox is None:
            # without a sidecar, the ranks' journals would be lost too
            into = partial(rundir.prepare_run_folder, session.run_folder)
            try:
                apart(END_LIMIT_S, Carrier(session.journals, into).carry)
            except (NoAnswerFromStorage, UnpreparedRunFolder, OSError) as error:
                log.once("journals", f"the last lines of the journals are lost: {error}")
            return
        self._tell(ended)
        limit_s = CONCLUSION_LIMIT_S + (AT_THE_END_S if self._alerts.any else 0.0)
        if not self._inbox.ended.wait(limit_s):
            log.once("conclusion", "the sidecar does not come to an end; its last verdict is lost")
            sidecar.kill()
        with suppress(subprocess.TimeoutExpired):
            sidecar.wait(END_LIMIT_S)

    def _tell(self, message: link.Message) -> None:
        sidecar = self._job.sidecar
        if sidecar is not None and sidecar.stdin is not None:
            link.send(sidecar.stdin, message)


# The run folder


def take_run_folder(
    wanted: str | None, record: RunRecord, number: int = 0, *, scheduled: bool = False
) -> rundir.RunFolder:
    """Claim a folder for this run. An unusable folder is replaced, so that training runs.

    All nodes of a job may be given one folder: the first node takes it, each other node a folder
    below, by ``number``. If no node has a number yet, the first to come takes it. A scheduler that
    restarts a job gives it the same folder again, and nobody is there to name another: the new
    start gets a folder below. Without a scheduler, UsedRunFolder.
    """
    number = number if wanted is not None else 0
    top = rundir.name_run_folder(wanted)

    def take(start: rundir.RunFolder) -> rundir.RunFolder:
        folder = rundir.folder_of_node(str(start.path), str(number)) if number else start
        return _taken(folder, record, below=number > 0)

    def take_for_next_start() -> rundir.RunFolder:
        """Take this node's folder in the newest start, or in a new start if that is taken.

        So all nodes find the same start without communication. A start that is over takes no more
        nodes: a node that comes then belongs to the next start.
        """
        start = rundir.starts_so_far(top)
        held = read_fact(rundir.folder_of_start(top, start).run_file, RunRecord, EVIDENCE_BYTES)
        if start == 1 or (held is not None and held.ended_at is not None):
            start += 1
        while True:
            try:
                return take(rundir.folder_of_start(top, start))
            except UsedRunFolder:
                start += 1

    try:
        try:
            return apart(DISK_LIMIT_S, lambda: take(top))
        except UsedRunFolder as used:
            if not scheduled:
                raise
            later = apart(DISK_LIMIT_S, take_for_next_start)
            log.once("run folder", f"{used.args[0]}; this one is kept in {later.path}")
            return later
    except (UnpreparedRunFolder, NoAnswerFromStorage, OSError) as error:
        other = temporary_run_folder()
        log.once("run folder", kept_instead(top, error, other))
        return _taken(other, record)


def _taken(folder: rundir.RunFolder, record: RunRecord, *, below: bool = False) -> rundir.RunFolder:
    # without numbers, each node takes a folder by its host's name; containers may share a name
    host = socket.gethostname().partition(".")[0]
    names = ["", *(() if below else (host, f"{host}-{os.urandom(4).hex()}"))]
    while True:
        name = names.pop(0)
        taken = rundir.folder_of_node(str(folder.path), name) if name else folder
        rundir.prepare_run_folder(taken)
        try:
            rundir.claim_run_folder(taken, encode_pretty(replace(record, run_id=taken.run_id)))
        except UsedRunFolder:
            # taken by another node of the same running job: try the next name; else an error
            held = read_fact(taken.run_file, RunRecord, EVIDENCE_BYTES)
            if not names or held is None or held.ended_at is not None:
                raise
            if not held.job or held.job != record.job:
                raise
        else:
            return taken


# The command and its descendants

PR_SET_CHILD_SUBREAPER = 36
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
HELD = (*END_SIGNALS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD)


class Job:
    """The command as our child. We also reap its orphans, so that all its processes stay below us.

    ``sidecar``: a process below us that is not of the job.
    """

    sidecar: subprocess.Popen[bytes] | None = None

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        mask: set[signal.Signals | int],
    ) -> None:
        # orphans below us become our children, not those of init
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        start = partial(
            subprocess.Popen[bytes],
            env=dict(environment),
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
        )
        try:
            try:
                self._process = start(list(command))
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                self._process = start(by_shell(command))
        except OSError as error:
            raise unstartable(command[0], error.strerror) from error
        self.pid = self._process.pid
        self.exit_code: int | None = None

    def reap(self) -> None:
        """Collect every child that has ended."""
        ours = None
        if self.sidecar is not None:
            ours = self.sidecar.pid
            self.sidecar.poll()
        self.exit_code = self._process.poll() if self.exit_code is None else self.exit_code
        with suppress(ChildProcessError):
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while (ended := os.waitid(os.P_ALL, 0, flags)) and ended.si_pid != ours:
                if ended.si_pid == self.pid:
                    self.exit_code = self._process.wait()
                else:
                    os.waitpid(ended.si_pid, os.WNOHANG)

    def pass_on(self, number: signal.Signals) -> None:
        """Pass a signal on to the command, unless it has ended."""
        if self.exit_code is None:
            send_signal(self.pid, number)

    def hang_up(self) -> None:
        """Tell the job that its terminal is closed, as the shell that leads a session does.

        Its groups in this session get SIGHUP and SIGCONT: a stopped process gets SIGHUP only then.
        """
        session = os.getsid(0)
        groups = set()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                if os.getsid(pid) == session:
                    groups.add(os.getpgid(pid))
        for group in groups:
            for number in (signal.SIGHUP, signal.SIGCONT):
                send_signal(-group, number)

    def processes(self) -> list[int]:
        """Return the job's processes that are alive, without the sidecar and its descendants."""
        skipped = set() if self.sidecar is None else {self.sidecar.pid}
        alive = []
        for ref in descendants(os.getpid()):
            if ref.pid in skipped or ref.parent_pid in skipped:
                skipped.add(ref.pid)
            elif not has_ended(ref.pid) and not is_apart(ref.pid):
                alive.append(ref.pid)
        return alive


def end_ranks(ranks: Iterable[tuple[int, int]]) -> None:
    """Kill the ranks of a hung round, and no process that was started since.

    SIGKILL: a hung rank does not react to SIGTERM, and torchrun would take a rank that ends on
    SIGTERM with code 0 for one that has finished.
    """
    for pid, started_ticks in ranks:
        if is_alive(pid, started_ticks):
            send_signal(pid, signal.SIGKILL)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, or a group (below 0), if it is there; a refusal is said once."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:  # sudo
        why = "may not be sent to the job, which runs as another user: send it as that user"
        log.once(f"refused {number}", f"{number.name} {why}, or as root: kill -{number:d} {pid}")


def refuse_unstartable(command: Sequence[str], subcommand: str = "run") -> None:
    """Raise BadUsage if a program is not there, before anything is made for its run."""
    if shutil.which(command[0]) is None:
        raise unstartable(command[0], "no such program, or it may not be run", subcommand)


def become(command: Sequence[str]) -> NoReturn:
    """Replace this process by the command, which then needs no more room than without us."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, its children do not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - the command is the user's own
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            os.execv("/bin/sh", by_shell(command))  # noqa: S606 - as above
        raise unstartable(command[0], error.strerror) from error


def by_shell(command: Sequence[str]) -> list[str]:
    """Return how shells and execvp(3) run a script that does not name its interpreter."""
    return ["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]]


def unstartable(program: str, why: str | None, subcommand: str = "run") -> BadUsage:
    """Return the error for a program that cannot be started; its remedy names ``subcommand``."""
    return BadUsage(
        f"{program!r} cannot be started ({why})",
        f"write it as you would without hangcheck: hangcheck {subcommand} -- python train.py",
    )


class Taken(Struct, frozen=True):
    """A signal that was sent to this process.

    ``from_kernel``: the terminal sent it, to the whole foreground group, so the command already has
    it; not so if it `hangs_up`.
    """

    number: signal.Signals
    from_kernel: bool

    @property
    def asks_for_end(self) -> bool:
        """Whether it ends the job; a signal that we inherited as ignored (nohup) does not."""
        return self.number in END_SIGNALS and signal.getsignal(self.number) is not signal.SIG_IGN

    @property
    def hangs_up(self) -> bool:
        """Whether the terminal of a session that we lead was closed.

        Then the kernel signals only the session's leader (drivers/tty/tty_jobctrl.c,
        tty_signal_session_leader), and the leader has to signal its jobs.
        """
        leads = os.getsid(0) == os.getpid()
        return self.number == signal.SIGHUP and self.from_kernel and leads and self.asks_for_end

    @property
    def by(self) -> str:
        """Who asked for the end, as in `AskedEnd`."""
        if not self.from_kernel:
            return f"{self.number.name} sent to hangcheck run"
        if self.number == signal.SIGHUP:
            return "SIGHUP (its terminal was closed)"
        return f"{self.number.name} from the terminal"


class Signals:
    """Takes signals that others, or a child's end, send to this process, in its own thread.

    `signal.sigtimedwait` returns arbitrary memory if a stop, as by Ctrl-Z, lasts longer than its
    time limit (seen with CPython 3.11); a wait without a limit does not.
    """

    def __init__(self, held: Iterable[signal.Signals]) -> None:
        self._held = frozenset(held)
        self._taken: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="hangcheck-signals", daemon=True).start()

    def next(self, time_limit_s: float) -> Taken | None:
        """Wait for a signal, this long at most."""
        try:
            return self._taken.get(timeout=time_limit_s)
        except queue.Empty:
            return None

    def _run(self) -> None:
        while True:
            taken = signal.sigwaitinfo(self._held)
            if taken.si_pid != os.getpid():  # else we sent it ourselves, to our whole group
                number = signal.Signals(taken.si_signo)
                self._taken.put(Taken(number, from_kernel=taken.si_code > 0))
