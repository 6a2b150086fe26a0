"""Starting real programs in tests, hearing that they are there, and ending them without fail."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

from lightning_hangcheck.files import is_apart
from lightning_hangcheck.look.proc import slept_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PROGRAMS = Path(__file__).parent / "programs"
ANNOUNCE = "HANGCHECK_TEST_ANNOUNCE"  # descriptor that a program announces itself on
MARK = "HANGCHECK_TEST_SESSION"  # in the environment of every process that a test starts
PATIENCE_S = 240.0  # for anything that comes by itself; another program may have the machine
GRACE_S = 20.0
Seen = TypeVar("Seen")
Ended = TypeVar("Ended", subprocess.Popen[str], subprocess.Popen[bytes])


class RunningProgram:
    """A program of tests/programs that has been started; its first words may be a pid."""

    def __init__(self, process: subprocess.Popen[str], announcements: int) -> None:
        self.process = process
        self.pid = process.pid
        self.first_words = ""
        self._announcements = announcements
        self._unread = b""

    def announcement(self, patience_s: float = PATIENCE_S) -> str:
        """Wait for the next line that the program announces."""
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._announcements], [], [], max(0.0, left))
            data = os.read(self._announcements, 4096) if ready else b""
            if not data:
                raise AssertionError(f"{self.process.args!r} did not announce itself")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def tell(self, line: str) -> None:
        """Send a line to the program's input."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """End the program and all below it."""
        end(self.process)
        os.close(self._announcements)


StartProgram = Callable[..., RunningProgram]  # the `program` fixture: name, arguments, environment


def start_program(
    program: Path | str, *arguments: str, environment: Mapping[str, str] | None = None
) -> RunningProgram:
    """Start a program of tests/programs (or a path), without waiting for it."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS / program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {}), ANNOUNCE: str(writer)},
        pass_fds=[writer],
    )
    os.close(writer)
    return RunningProgram(process, reader)


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a process and all below it: terminate, kill after a grace, wait with a limit."""
    everyone = []
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        everyone = [root, *root.children(recursive=True)]
    end_by_pid(everyone)
    process.wait(GRACE_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


@contextmanager
def ending(process: Ended) -> Iterator[Ended]:
    """End a process and all below it when the block is left, however that is."""
    try:
        yield process
    finally:
        end(process)


def end_by_pid(processes: Iterable[psutil.Process]) -> None:
    """Terminate these processes, kill after a grace those that are still there."""
    remaining = list(processes)
    for ask in (signal.SIGTERM, signal.SIGKILL):
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(ask)
                process.send_signal(signal.SIGCONT)  # a stopped process hears SIGTERM only then
        deadline = time.monotonic() + GRACE_S
        while remaining and time.monotonic() < deadline:
            remaining = [process for process in remaining if is_alive(process)]
            time.sleep(0.005)
    if remaining:
        raise AssertionError(f"not even SIGKILL ended {remaining}")


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not, whenever its parent may reap it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_of(process: psutil.Process) -> list[str]:
    """Return the words of its command; none of one that has just ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def runs(process: psutil.Process, word: str) -> bool:
    """Whether a process runs a command with this word."""
    return word in command_of(process)


def is_sidecar(process: psutil.Process) -> bool:
    """Whether it is one, and no copy that writes a page or asks a disk for one."""
    return runs(process, "lightning_hangcheck.watch.sidecar") and not is_apart(process.pid)


def has_slept(pid: int, seconds: float) -> bool:
    """Whether a process has not run for so long, also where the kernel does not tell that."""
    slept = slept_s(pid)
    return slept is None or slept >= seconds


def run_python(
    *words: object,
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    limit_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words and this environment until it ends, without any input."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def until(look: Callable[[], Seen], what: str, seconds: float = PATIENCE_S) -> Seen:
    """Look again and again until there is something to see, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}, last saw {seen!r}")
        time.sleep(0.01)


def marked_processes(mark: str) -> list[psutil.Process]:
    """Find every process that this test session started, also those whose parents have ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            ours = process.environ().get(MARK) == mark and process.pid != os.getpid()
            # Python's own helper of multiprocessing ends with us
            if ours and not any("resource_tracker" in word for word in process.cmdline()):
                found.append(process)
    return found
