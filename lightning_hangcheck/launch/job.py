"""The launched command and all below it: started unchanged, passed signals, reaped, aborted.

Signals of `hangcheck run` are taken one by one, so that each can be passed on to the command.
"""

from __future__ import annotations

import ctypes
import os
import queue
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.files.apart import is_apart
from lightning_hangcheck.look.proc import descendants, has_ended
from lightning_hangcheck.machine import is_alive

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PR_SET_CHILD_SUBREAPER = 36
PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
HELD = (*PASSED_ON, signal.SIGCHLD)
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Job:
    """The command as our child. We become the reaper of its orphans, so that all stays below us.

    ``sidecar``: what is below us, and not of the job.
    """

    sidecar: subprocess.Popen[bytes] | None = None

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        mask: set[signal.Signals | int],
    ) -> None:
        # orphans below us are handed to us instead of to init
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
            )
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
        """Send the command a signal that was meant for it."""
        if self.exit_code is None:
            self._process.send_signal(number)

    def hang_up(self) -> None:
        """Tell the job that its terminal is closed, as the shell that leads a session does.

        SIGHUP, and SIGCONT, as a stopped process hears it only then, to its groups of this session.
        """
        session = os.getsid(0)
        groups = set()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                if os.getsid(pid) == session:
                    groups.add(os.getpgid(pid))
        for group in groups:
            for number in (signal.SIGHUP, signal.SIGCONT):
                with suppress(ProcessLookupError):
                    os.killpg(group, number)

    def processes(self) -> list[int]:
        """Return the job's processes that are alive, without the sidecar and what that started."""
        skipped = set() if self.sidecar is None else {self.sidecar.pid}
        alive = []
        for ref in descendants(os.getpid()):
            if ref.pid in skipped or ref.parent_pid in skipped:
                skipped.add(ref.pid)
            elif not has_ended(ref.pid) and not is_apart(ref.pid):
                alive.append(ref.pid)
        return alive


def end_ranks(ranks: Iterable[tuple[int, int]]) -> None:
    """Kill the ranks of a hung round, and nothing that was started since.

    SIGKILL: a rank that hangs does not answer SIGTERM, and one that left with code 0 on it would
    look to torchrun like one that has done its work.
    """
    for pid, started_ticks in ranks:
        if is_alive(pid, started_ticks):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def refuse_unstartable(command: Sequence[str], subcommand: str = "run") -> None:
    """Refuse a program that is not there, before anything is made for its run."""
    if shutil.which(command[0]) is None:
        raise unstartable(command[0], "no such program, or it may not be run", subcommand)


def become(command: Sequence[str]) -> NoReturn:
    """Turn this process into the command, so that it takes no more than it would without us."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, as its children do not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - the command is the user's own
    except OSError as error:
        raise unstartable(command[0], error.strerror) from error


def unstartable(program: str, why: str | None, subcommand: str = "run") -> BadUsage:
    """Say why a program cannot be started; ``subcommand`` as in `refuse_unstartable`."""
    return BadUsage(
        f"{program!r} cannot be started ({why})",
        f"write it as you would without hangcheck: hangcheck {subcommand} -- python train.py",
    )


class Taken(Struct, frozen=True):
    """A signal that was sent to this process.

    Attributes:
        from_kernel: The terminal sent it, to the whole foreground group: the command has got it
            already. Not so for `hangs_up`.
    """

    number: signal.Signals
    from_kernel: bool

    @property
    def asks_for_end(self) -> bool:
        """Whether it ends the job; one that we were told to ignore (nohup) does not."""
        return self.number in END_SIGNALS and signal.getsignal(self.number) is not signal.SIG_IGN

    @property
    def hangs_up(self) -> bool:
        """Whether the terminal of a session that we lead was closed.

        Then the kernel tells the session's leader alone (drivers/tty/tty_jobctrl.c,
        tty_signal_session_leader), and the leader its jobs.
        """
        leads = os.getsid(0) == os.getpid()
        return self.number == signal.SIGHUP and self.from_kernel and leads and self.asks_for_end

    @property
    def by(self) -> str:
        """Who asked for the end by it, as in `AskedEnd`."""
        if not self.from_kernel:
            return f"{self.number.name} sent to hangcheck run"
        if self.number == signal.SIGHUP:
            return "SIGHUP (its terminal was closed)"
        return f"{self.number.name} from the terminal"


class Signals:
    """Takes signals that others, or a child's end, sent to this process, in a thread of its own.

    `signal.sigtimedwait` returns what happens to lie in memory where a stop, as by Ctrl-Z, lasts
    longer than its time limit (seen with CPython 3.11); a wait without a limit has no such case.
    """

    def __init__(self, held: Iterable[signal.Signals]) -> None:
        self._held = frozenset(held)
        self._taken: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="hangcheck-signals", daemon=True).start()

    def next(self, time_limit_s: float) -> Taken | None:
        """Wait for one, at most so many seconds."""
        try:
            return self._taken.get(timeout=time_limit_s)
        except queue.Empty:
            return None

    def _run(self) -> None:
        while True:
            taken = signal.sigwaitinfo(self._held)
            if taken.si_pid != os.getpid():  # else we sent it ourselves, together with our group
                number = signal.Signals(taken.si_signo)
                self._taken.put(Taken(number, from_kernel=taken.si_code > 0))
