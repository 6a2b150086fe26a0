"""Reads the Python stacks of a process: by py-spy from outside, or written by the process itself.

py-spy is found, run within a time limit, and its complaints are reported. It pauses nothing. A
thread that calls or returns during the few milliseconds of a dump can show a stack without its
outer end, garbage instead of a name, or an error: 1 to 2 dumps in 100 of a thread that does nothing
but call (py-spy 0.4.3, Python 3.11). Torn dumps are read again; a waiting thread cannot be torn.
Only a dump of native calls pauses the process.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import time
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import msgspec
from msgspec.structs import replace

from lightning_hangcheck.files import open_owned
from lightning_hangcheck.isolation.command import interpreter, own_environment, searched_folders
from lightning_hangcheck.look import proc
from lightning_hangcheck.look.proc import Looked, Unseen, guarded
from lightning_hangcheck.look.programs import ChildLate, answer_of
from lightning_hangcheck.machine import read_status
from lightning_hangcheck.model.codec import json_decoder
from lightning_hangcheck.model.evidence import Frame, Gap, LocalValues, ProcessStack, ThreadStack
from lightning_hangcheck.session.session import StackOffer, find_offer
from lightning_hangcheck.text.redaction import redact_values

PY_SPY = "py-spy"
# Rust programs print a backtrace below each error if the user asked for that.
QUIET = {"RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"}
WITH_VALUES = "-lllll"
"""Option for local variables, cut at `LONGEST_READ`: 128 characters for each l (0.4.3)."""
LONGEST_READ = 640
MOST_DUMPS = 3  # Three torn dumps in a row: one read in 100,000 on an idle machine
BEGINNINGS = ("<module>", "_bootstrap", "Thread._bootstrap", "_run_module_as_main")
"""Functions with which Python itself begins a thread."""
LARGEST_STRUCTURE = 1024
"""Bytes of a thread's structure that are searched for its id: glibc has it at 720 (x86-64)."""
WORD = 4


class PySpyFailed(Unseen):
    """py-spy gave no stacks; the reason is its own complaint in one line."""


def find_py_spy() -> Path | None:
    """Find py-spy next to this Python, where pip puts it, or on PATH."""
    folders = os.pathsep.join((str(Path(interpreter()).parent), searched_folders("PATH")))
    found = shutil.which(PY_SPY, path=folders)
    return Path(found) if found else None


def dump(pid: int, time_limit_s: float, *options: str) -> bytes:
    """Run ``py-spy dump --json``; raises `Unseen`.

    A killed py-spy leaves the process running: it attaches with PTRACE_SEIZE, which the kernel
    undoes (153 kills at random moments, 0.4.3: never stopped). ``--native`` pauses the process
    meanwhile.
    """
    program = find_py_spy()
    if program is None:
        why = "py-spy is not installed beside this Python nor on PATH"
        raise Unseen(why, "pip install py-spy")
    command = [str(program), "dump", "--json", "--pid", str(pid), *options]
    try:
        answer = answer_of(command, time_limit_s, {**own_environment(), **QUIET})
    except OSError as error:
        raise PySpyFailed(f"py-spy: {program} cannot be started ({error.strerror})") from error
    except ChildLate as error:
        raise Unseen(f"py-spy gave {error}") from error
    if answer.returncode == 0:
        return answer.stdout
    # the headline, and the innermost cause, which py-spy lists below ``Caused by:``
    complaint = answer.stderr.decode(errors="replace").strip().removeprefix("Error: ")
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    headline = lines[0] if lines else f"it ended with {answer.returncode}"
    if lines and lines[-1] not in headline:
        headline += f" ({lines[-1].partition(': ')[2] or lines[-1]})"
    raise PySpyFailed(f"py-spy: {headline}")


class DumpedLocal(msgspec.Struct):
    """A local variable in py-spy's JSON (0.4)."""

    name: str
    repr: str | None = None


class DumpedFrame(msgspec.Struct):
    """A frame in py-spy's JSON (0.4); a native frame has a ``module``, its library.

    ``is_shim_entry``: native code called it, as the outermost frame of every thread.
    """

    name: str
    filename: str = ""
    line: int = 0
    module: str | None = None
    locals: list[DumpedLocal] | None = None
    is_shim_entry: bool = True

    @property
    def place(self) -> Frame:
        """Its function, file and line."""
        return Frame(self.name, self.filename, self.line)

    def shown(self, name: str) -> str:
        """Return a variable's value as text; empty if there is none."""
        return next((local.repr or "" for local in self.locals or () if local.name == name), "")


class DumpedThread(msgspec.Struct):
    """A thread in py-spy's JSON (0.4); frames innermost first."""

    frames: list[DumpedFrame]
    os_thread_id: int | None = None
    thread_id: int = 0
    thread_name: str | None = None
    active: bool = False
    owns_gil: bool = False

    def stack(self, most: int | None = None) -> ThreadStack:
        """Return it as evidence, with at most ``most`` of its innermost frames."""
        return ThreadStack(
            tid=self.os_thread_id,
            ident=self.thread_id,
            name=self.thread_name or "",
            active=self.active,
            owns_gil=self.owns_gil,
            frames=tuple(frame.place for frame in reversed(self.frames[:most])),
        )

    @property
    def is_torn(self) -> bool:
        """Whether no thread can look like this: its outer end is missing, or a name is no text."""
        texts = [text for frame in self.frames for text in (frame.name, frame.filename)]
        broken = any("\0" in text for text in texts) or not all(frame.name for frame in self.frames)
        return bool(self.frames) and (broken or not self.frames[-1].is_shim_entry)


def read_threads(pid: int, time_limit_s: float, *, values: bool = False) -> list[DumpedThread]:
    """Read all Python threads of a process without pausing it, again if the dump was torn.

    The time limit covers all attempts. ``values``: local variables too, as text. Raises `Unseen`.
    """
    deadline = time.monotonic() + time_limit_s
    seen: set[tuple[int | None, str]] = set()
    failure: Unseen = PySpyFailed("py-spy: no time is left")
    options = ["--nonblocking", *([WITH_VALUES] if values else [])]
    for _ in range(MOST_DUMPS):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        try:
            threads = _decoded(dump(pid, left_s, *options))
        except PySpyFailed as error:
            failure = Unseen(proc.ENDED) if proc.has_ended(pid) else proc.why_refused(pid) or error
            if failure is error:
                continue
            raise failure from error
        # from Python 3.12 on a cut stack may look whole. But native code may call Python in its own
        # thread: an outermost function with which Python begins no thread must be seen twice
        begun = {
            (thread.os_thread_id, thread.frames[-1].name if thread.frames else "")
            for thread in threads
            if thread.active
        }
        unsure = {(tid, begin) for tid, begin in begun if begin not in BEGINNINGS}
        if not any(thread.is_torn for thread in threads) and unsure <= seen:
            return _with_our_ids(pid, threads)
        seen |= unsure
        torn = "py-spy: the process ran on while it was read, and what was read is torn"
        failure = PySpyFailed(torn)
    raise proc.why_filtered() or failure


def _decoded(data: bytes) -> list[DumpedThread]:
    try:
        return json_decoder(list[DumpedThread]).decode(data)
    except msgspec.MsgspecError as error:
        why = f"py-spy's answer is of another version than 0.4: {error}"
        raise Unseen(why, "pip install -U py-spy") from error


def _with_our_ids(pid: int, threads: list[DumpedThread]) -> list[DumpedThread]:
    """Replace thread ids by those of our pid namespace: py-spy reads them in the process.

    Python 3.10 keeps no ids. There they are read from the C library's thread structures, whose
    addresses ``threading.get_ident`` returns. The id's position in a structure is found in
    the main thread's: its id is the pid.
    """
    ours = proc.inner_thread_ids(pid)
    main = next((inner for inner, outer in ours.items() if outer == pid), pid)
    words: dict[int, tuple[int, ...]] = {}
    for thread in threads:
        if thread.os_thread_id is None:
            data = proc.read_memory(pid, thread.thread_id, LARGEST_STRUCTURE)
            whole = len(data) // WORD
            words[thread.thread_id] = struct.unpack(f"={whole}i", data[: whole * WORD])
    place = min((word.index(main) for word in words.values() if main in word), default=None)
    alive: set[int] = set()
    with suppress(OSError):
        alive = set(proc.thread_ids(pid))
    found = []
    for thread in threads:
        tid = thread.os_thread_id
        if tid is None and place is not None:
            tid = next(iter(words[thread.thread_id][place : place + 1]), 0)
            tid = tid if ours.get(tid, tid) in alive else None
        found.append(replace(thread, os_thread_id=None if tid is None else ours.get(tid, tid)))
    return found


class Variables:
    """The local variables of a process's calls; py-spy is run at most once, and only if needed.

    Until a monotonic deadline, in seconds. ``why_not``: why they cannot be read.
    """

    def __init__(self, pid: int, deadline: float) -> None:
        self._pid, self._deadline = pid, deadline
        self._threads: dict[int | None, list[DumpedFrame]] | None = None
        self.why_not: Unseen | None = None

    def of(self, tid: int | None) -> list[DumpedFrame]:
        """Return the calls of a thread, innermost first; empty if they cannot be read."""
        if self._threads is None:
            self._threads = {}
            try:
                threads = read_threads(self._pid, self._deadline - time.monotonic(), values=True)
                self._threads = {thread.os_thread_id: thread.frames for thread in threads}
            except Unseen as error:
                self.why_not = error
        return self._threads.get(tid, [])

    def at(self, tid: int | None, depth: int, frame: Frame) -> DumpedFrame | None:
        """Return a call that is still at its place, by the number of calls outside of it."""
        frames = self.of(tid)[::-1]
        found = frames[depth] if depth < len(frames) else None
        return found if found is not None and found.place == frame else None


def python_stacks(pid: int, rank: int | None, time_limit_s: float) -> Looked[ProcessStack]:
    """Read the stacks of all Python threads of a running process, the main thread first.

    About 10 ms (55 ms with 200 threads). A sleeping thread is not woken: the kernel still counts
    its sleep. Without any stack, a gap names the remedy.
    """

    def look() -> ProcessStack:
        if proc.has_ended(pid):
            raise Unseen(proc.ENDED)
        threads = read_threads(pid, time_limit_s)
        if not threads:
            raise Unseen("it runs no Python thread")

        def order(thread: DumpedThread) -> tuple[bool, int]:
            """Sort the main thread first: py-spy orders by an address."""
            tid = thread.os_thread_id
            is_main = thread.thread_name == "MainThread" if tid is None else tid == pid
            return not is_main, tid or 0

        stacks = tuple(thread.stack() for thread in sorted(threads, key=order))
        return ProcessStack(pid=pid, source=PY_SPY, threads=stacks)

    return guarded("stack", f"stack of pid {pid}", rank, look)


# What is read only on request

LONGEST_VALUE = 80
_CUT_WORD = re.compile(r"[^\s\"',;:=]*\.\.\.([\"'\])}]*)\Z")
MOST_VALUES = 16  # Of one call: nobody reads more


def local_values(
    variables: Variables, pid: int, rank: int | None, tid: int | None
) -> Looked[tuple[LocalValues, ...]]:
    """Return the local variables of a thread's calls that have any, outermost call first.

    No code of the process runs: an object that is no plain value shows only its type and address.
    Values are hidden if their name suggests a secret, or if they look like one.
    """

    def shown(frame: DumpedFrame) -> dict[str, str]:
        """Hide secrets in whole values, then cut these: half a secret has no known shape.

        The word in which py-spy cut a text is dropped: it may be the beginning of a secret.
        """
        values = {local.name: local.repr or "?" for local in (frame.locals or ())[:MOST_VALUES]}
        whole = {
            name: value if len(value) < LONGEST_READ else _CUT_WORD.sub(r"...\1", value)
            for name, value in values.items()
        }
        return {
            name: value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}..."
            for name, value in redact_values(whole).items()
        }

    def look() -> tuple[LocalValues, ...]:
        frames = [frame for frame in reversed(variables.of(tid)) if frame.locals]
        if variables.why_not is not None:
            raise variables.why_not
        return tuple(LocalValues(frame.place, shown(frame)) for frame in frames)

    return guarded("local_values", f"local variables of pid {pid}", rank, look)


MOST_CALLS = 12  # The innermost, in which the thread waits; Python's stack shows what led there


def native_calls(
    pid: int, rank: int | None, time_limit_s: float, tid: int
) -> Looked[tuple[str, ...]]:
    """Read the native calls inside a thread's innermost Python frame, outermost first.

    Takes 0.1 to 0.8 s and pauses the process: only for a process that is stuck anyway, with no
    thread stopped or in state D. Calls without a symbol are left out.
    """

    def look() -> tuple[str, ...]:
        return innermost_calls(dump(pid, time_limit_s, "--native"), tid)

    return guarded("native_calls", f"native calls of pid {pid}", rank, look)


def innermost_calls(data: bytes, tid: int) -> tuple[str, ...]:
    """Read the native calls from py-spy's JSON; `Unseen` if it has another form."""
    frames = next((thread.frames for thread in _decoded(data) if thread.os_thread_id == tid), [])
    native = takewhile(lambda frame: frame.module is not None, frames)
    calls = [frame.name for frame in native if not frame.name.startswith("0x")]
    return tuple(reversed(calls[:MOST_CALLS]))


# If py-spy may not read a process, a signal asks it to write its stacks by faulthandler. /proc
# shows anybody whether the process handles the signal. This is read first: a signal without a
# handler would end the process. faulthandler writes no class names and no kernel ids, and at most
# 100 frames a thread and 100 threads, newest first. Three dots mark missing threads, maybe the main
# one

WITHOUT = "no class names, local variables or child processes"
LIMIT_S = 2.0  # An answer takes 5 to 30 ms if the process runs at all
POLL_S = 0.004
LARGEST_ANSWER = 4 * 1024 * 1024  # 100 threads of 100 frames, 400 bytes each
MOST_THREADS = 100  # MAX_NTHREADS of Python/traceback.c, in all versions so far


def signalled_stacks(
    pid: int, rank: int | None, time_limit_s: float, refused: tuple[Gap, ...] = ()
) -> Looked[ProcessStack]:
    """Have a process write its own stacks, if it offers that and py-spy was refused.

    The signal is sent only to the very process that offered, and only if it still has its handler.
    System calls that cannot resume (poll, select) return EINTR; Python, gloo and NCCL retry them.
    """
    offer = find_offer(pid)
    if offer is None:
        return None, refused

    def look() -> ProcessStack:
        try:
            return _ask(offer, time.monotonic() + min(LIMIT_S, time_limit_s))
        except OSError as error:
            raise Unseen(str(error)) from error

    stack, gaps = guarded("stack", f"stack of pid {pid} by signal", rank, look)
    if stack is None:
        return None, refused + gaps
    instead = f"the rank wrote its stack itself instead, by faulthandler: {WITHOUT}"
    return stack, tuple(replace(gap, why=f"{gap.reason}; {instead}", remedy="") for gap in refused)


def _ask(offer: StackOffer, deadline: float) -> ProcessStack:
    pid = offer.pid

    def has(field: str, tid: int | None = None) -> bool:
        """Whether a set of signals in a status file contains this signal."""
        return bool(int(read_status(pid, tid).get(field, "0"), 16) >> (offer.signal - 1) & 1)

    def blocking() -> set[int]:
        """Return the threads that block it; a thread does while it runs the handler."""
        found = set()
        for tid in proc.thread_ids(pid):
            with suppress(OSError):  # the thread ended after it was listed
                found |= {tid} if has("SigBlk", tid) else set()
        return found

    process = os.pidfd_open(pid)
    try:
        # a signal without a handler would end the process; exec removes handlers
        seen = proc.vitals(pid)
        if seen is None or seen.started_ticks != offer.started_ticks or seen.has_ended:
            raise Unseen(proc.ENDED)
        if seen.state in "Tt":
            raise Unseen("it is stopped, so it answers no signal")
        if not has("SigCgt"):
            raise Unseen(f"it no longer handles signal {offer.signal}")
        if has("ShdPnd"):
            raise Unseen("it has not answered an earlier request yet")
        before = blocking()
        os.truncate(offer.answers, 0)
        signal.pidfd_send_signal(process, offer.signal)
    finally:
        os.close(process)
    # the thread that takes the signal blocks it until all is written: only then the answer is whole
    answers = Path(offer.answers)
    while has("ShdPnd") or answers.stat().st_size == 0 or blocking() - before:
        if time.monotonic() > deadline:
            raise Unseen(f"it did not answer signal {offer.signal} in time")
        time.sleep(POLL_S)
    with os.fdopen(open_owned(answers), "rb") as file:
        text = file.read(LARGEST_ANSWER).decode("ascii", errors="replace")
    threads = read_stacks(text, pid, offer.main_thread)
    if threads:
        return ProcessStack(pid=pid, source="faulthandler", threads=threads)
    if "..." in text.splitlines():
        raise Unseen(
            f"it has more than {MOST_THREADS} threads, and faulthandler writes only the newest "
            f"{MOST_THREADS}: its main thread is not among them"
        )
    raise Unseen("its main thread is not among those that it wrote")


# Reading what faulthandler writes. Pure

THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)"
    r"(?: \[(?P<name>.*)\])? \(most recent call first\):$"
)
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def read_stacks(text: str, pid: int, main_thread: int) -> tuple[ThreadStack, ...]:
    """Read one answer of a process: its threads, the main thread first; empty without that.

    ``main_thread`` is Python's identifier; the kernel's id of the main thread is the pid. The
    kernel's ids of other threads are unknown.
    """
    threads: dict[int, tuple[str, list[Frame]]] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        begins, frame = THREAD.match(line), FRAME.match(line)
        if begins is not None:
            frames = []
            threads[int(begins["ident"], 16)] = (begins["name"] or "", frames)
        elif frame is not None:
            function, file = unescaped(frame["function"]), unescaped(frame["file"])
            frames.append(Frame(function, file, int(frame["line"])))
    if main_thread not in threads:
        return ()
    stacks = [
        ThreadStack(
            tid=pid if ident == main_thread else None,
            ident=ident,
            name="MainThread" if ident == main_thread else name or f"0x{ident:x}",
            frames=tuple(reversed(inner_first)),
        )
        for ident, (name, inner_first) in threads.items()
    ]
    return tuple(sorted(stacks, key=lambda stack: stack.ident != main_thread))


def unescaped(text: str) -> str:
    """Return text beyond ASCII, which faulthandler writes as escapes."""
    return ESCAPE.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)
