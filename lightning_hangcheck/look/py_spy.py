"""Python stacks of a process, taken by py-spy from outside: one dump, with or without variables.

py-spy is found here, run within a time limit, and heard when it complains. Nothing is paused, so a
thread that calls or returns during the few milliseconds of the reading can leave a chain of calls
without its outer end, memory that is no name any more, or an error: one to two dumps in a hundred
of a thread that does nothing but call (py-spy 0.4.3, Python 3.11). What came out torn is read
again. A thread that waits cannot be torn. Only a dump of native calls pauses the process.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from lightning_hangcheck.isolation.command import interpreter
from lightning_hangcheck.isolation.environment import own_environment, searched_folders
from lightning_hangcheck.look.proc import (
    Refusal,
    has_ended,
    inner_thread_ids,
    read_memory,
    thread_ids,
    why_filtered,
    why_refused,
)
from lightning_hangcheck.look.programs import ChildLate, answer_of
from lightning_hangcheck.look.source import Sources
from lightning_hangcheck.model.codec import json_decoder
from lightning_hangcheck.model.evidence import Frame, Gap, LocalValues, ProcessStack, ThreadStack
from lightning_hangcheck.text.redaction import redact_values
from lightning_hangcheck.time_limit import Looked, guarded

PY_SPY = "py-spy"
ABSENT = Refusal("py-spy is not installed beside this Python nor on PATH", "pip install py-spy")
ENDED = Refusal("the process has ended")
# Rust programs print a backtrace below each error where the user asked for one.
QUIET = {"RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"}
WITH_VALUES = "-lllll"
"""Option for local variables, cut at `LONGEST_READ`: 128 characters for each l (0.4.3)."""
LONGEST_READ = 640
MOST_DUMPS = 3
"""Three torn ones in a row come once in a hundred thousand reads on an idle machine."""


class PySpyFailed(Exception):
    """py-spy gave no stacks; the message is its own complaint in one line."""


class PySpyAbsent(PySpyFailed):
    """It is not installed."""


class PySpyLate(Exception):
    """py-spy gave no answer in time and was killed."""


def find_py_spy() -> Path | None:
    """Find the program beside this Python, where pip puts it, or on PATH."""
    beside = Path(interpreter()).parent / "py-spy"
    if os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("py-spy", path=searched_folders("PATH"))
    return Path(on_path) if on_path else None


def dump(pid: int, time_limit_s: float, *options: str) -> bytes:
    """Run ``py-spy dump --json``.

    A py-spy that is killed leaves its target running: it attaches with PTRACE_SEIZE, which the
    kernel undoes (153 kills at random moments, 0.4.3: never stopped). ``--native`` pauses the
    process, ``--nonblocking`` does not.
    """
    program = find_py_spy()
    if program is None:
        raise PySpyAbsent(ABSENT.why)
    command = [str(program), "dump", "--json", "--pid", str(pid), *options]
    try:
        answer = answer_of(command, time_limit_s, {**own_environment(), **QUIET})
    except OSError as error:
        raise PySpyFailed(f"{program} cannot be started ({error.strerror})") from error
    except ChildLate as error:
        raise PySpyLate(f"py-spy gave {error}") from error
    if answer.returncode != 0:
        raise PySpyFailed(_in_one_line(answer.stderr) or f"it ended with {answer.returncode}")
    return answer.stdout


def _in_one_line(complaint: bytes) -> str:
    """Join the first line and the innermost cause, which py-spy lists below ``Caused by:``."""
    lines = [line.strip() for line in complaint.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return ""
    headline = lines[0].removeprefix("Error: ")
    if len(lines) == 1 or lines[-1] in headline:
        return headline
    return f"{headline} ({lines[-1].partition(': ')[2] or lines[-1]})"


class DumpedLocal(msgspec.Struct):
    """A local variable in py-spy's JSON (0.4)."""

    name: str
    repr: str | None = None


class DumpedFrame(msgspec.Struct):
    """A frame in py-spy's JSON (0.4); a native one has a ``module``, its library.

    ``is_shim_entry``: native code called it: so it is with the outermost of every thread.
    """

    name: str
    filename: str = ""
    line: int = 0
    module: str | None = None
    locals: list[DumpedLocal] | None = None
    is_shim_entry: bool = True

    @property
    def place(self) -> Frame:
        """Where it stands."""
        return Frame(self.name, self.filename, self.line)

    def shown(self, name: str) -> str:
        """What is shown of a variable; empty where there is none, or nothing."""
        return next((one.repr or "" for one in self.locals or () if one.name == name), "")


class DumpedThread(msgspec.Struct):
    """A thread in py-spy's JSON (0.4); frames innermost first."""

    frames: list[DumpedFrame]
    os_thread_id: int | None = None
    thread_id: int = 0
    thread_name: str | None = None
    active: bool = False
    owns_gil: bool = False

    def stack(self, most: int | None = None, *, takes_lock: bool = False) -> ThreadStack:
        """Return it as evidence, with at most so many of its innermost frames."""
        return ThreadStack(
            tid=self.os_thread_id,
            ident=self.thread_id,
            name=self.thread_name or "",
            active=self.active,
            owns_gil=self.owns_gil,
            takes_lock=takes_lock,
            frames=tuple(frame.place for frame in reversed(self.frames[:most])),
        )


def read_threads(pid: int, time_limit_s: float, *, values: bool = False) -> list[DumpedThread]:
    """Read all Python threads of a process without pausing it, again where they came out torn.

    The time limit is for all attempts together. ``values``: local variables too, as text. Raises
    PySpyFailed, PySpyLate, or msgspec.MsgspecError where the answer is of another form.
    """
    deadline = time.monotonic() + time_limit_s
    seen: set[tuple[int | None, str]] = set()
    failure = PySpyFailed("no time is left")
    options = ["--nonblocking", *([WITH_VALUES] if values else [])]
    for _ in range(MOST_DUMPS):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        try:
            data = dump(pid, left_s, *options)
        except PySpyFailed as error:
            if has_ended(pid) or why_refused(pid) is not None:
                raise
            failure = error
            continue
        threads = json_decoder(list[DumpedThread]).decode(data)
        begun = ((one, one.frames[-1].name if one.frames else "") for one in threads)
        # from Python 3.12 on a chain that ends too early may look whole; but native code may call
        # Python in a thread of its own: a beginning that no thread of Python's has must come twice
        unsure = {
            (one.os_thread_id, begin)
            for one, begin in begun
            if one.active and begin not in BEGINNINGS
        }
        if not any(is_torn(one) for one in threads) and unsure <= seen:
            return _with_our_ids(pid, threads)
        seen |= unsure
        failure = PySpyFailed("the process ran on while it was read, and what was read is torn")
    raise failure


def is_torn(thread: DumpedThread) -> bool:
    """Whether no thread can stand like this: its outer end is missing, or a name is no text."""
    if not thread.frames:
        return False
    texts = [text for frame in thread.frames for text in (frame.name, frame.filename)]
    broken = any("\0" in one for one in texts) or not all(one.name for one in thread.frames)
    return broken or not thread.frames[-1].is_shim_entry


BEGINNINGS = ("<module>", "_bootstrap", "Thread._bootstrap", "_run_module_as_main")
"""Functions that Python itself begins a thread with."""


LARGEST_STRUCTURE = 1024
"""Bytes of a thread's own structure in which its id is looked for: glibc has it at 720 (x86-64)."""
WORD = 4


def _with_our_ids(pid: int, threads: list[DumpedThread]) -> list[DumpedThread]:
    """Name threads as the kernel names them to us: py-spy reads their ids in the process.

    Python 3.10 keeps none. There they are read from the C library's structures of threads, whose
    addresses are what ``threading.get_ident`` tells. Where in its structure a thread has its id,
    the main one's tells: that alone is the process's own.
    """
    ours = inner_thread_ids(pid)
    main = next((inner for inner, outer in ours.items() if outer == pid), pid)
    words: dict[int, tuple[int, ...]] = {}
    for thread in threads:
        if thread.os_thread_id is None:
            data = read_memory(pid, thread.thread_id, LARGEST_STRUCTURE)
            whole = len(data) // WORD
            words[thread.thread_id] = struct.unpack(f"={whole}i", data[: whole * WORD])
    place = min((one.index(main) for one in words.values() if main in one), default=None)
    alive: set[int] = set()
    with suppress(OSError):
        alive = set(thread_ids(pid))

    def our_id(thread: DumpedThread) -> int | None:
        tid = thread.os_thread_id
        if tid is not None:
            return ours.get(tid, tid)
        at_place = words[thread.thread_id][place : place + 1] if place is not None else ()
        found = next(iter(at_place), 0)
        return ours.get(found, found) if ours.get(found, found) in alive else None

    return [replace(one, os_thread_id=our_id(one)) for one in threads]


class Variables:
    """What the local variables of a process's calls show; py-spy is asked at most once, if at all.

    Until a monotonic deadline, in seconds.
    """

    def __init__(self, pid: int, deadline: float) -> None:
        self._pid = pid
        self._deadline = deadline
        self._threads: dict[int | None, list[DumpedFrame]] | None = None
        self.why_not = ""

    def of(self, tid: int | None) -> list[DumpedFrame]:
        """Return the calls of a thread, innermost first; none where they cannot be read."""
        if self._threads is None:
            self._threads = {}
            try:
                threads = read_threads(self._pid, self._deadline - time.monotonic(), values=True)
                self._threads = {one.os_thread_id: one.frames for one in threads}
            except (PySpyFailed, PySpyLate, msgspec.MsgspecError) as error:
                self.why_not = f"py-spy: {error}"
        return self._threads.get(tid, [])

    def at(self, tid: int | None, depth: int, frame: Frame) -> DumpedFrame | None:
        """Return a call that still stands where it stood, by how many are outside of it."""
        frames = self.of(tid)[::-1]
        found = frames[depth] if depth < len(frames) else None
        return found if found is not None and found.place == frame else None


def python_stacks(pid: int, rank: int | None, time_limit_s: float) -> Looked[ProcessStack]:
    """Take the stacks of all Python threads of a process, which runs on meanwhile, main one first.

    About 10 ms (55 ms with 200 threads). One that sleeps is not woken: the kernel goes on counting.
    Without any, a gap tells the way out.
    """
    what = f"stack of pid {pid}"

    def look() -> Looked[ProcessStack]:
        answer = _take(pid, time_limit_s)
        if isinstance(answer, ProcessStack):
            return answer, ()
        return None, (Gap(what, rank, answer.why, "stack", answer.remedy),)

    return guarded("stack", what, rank, look)


def _take(pid: int, time_limit_s: float) -> ProcessStack | Refusal:
    """Return the stacks, or why there are none."""
    if has_ended(pid):
        return ENDED
    try:
        threads = read_threads(pid, time_limit_s)
    except PySpyAbsent:
        return ABSENT
    except PySpyLate as error:
        return Refusal(str(error))
    except PySpyFailed as error:
        if has_ended(pid):
            return ENDED
        return why_refused(pid) or why_filtered() or Refusal(f"py-spy: {error}")
    except msgspec.MsgspecError as error:
        why = f"py-spy's answer is of another version than 0.4: {error}"
        return Refusal(why, "pip install -U py-spy")
    if not threads:
        return Refusal("it runs no Python thread")

    def is_main(thread: DumpedThread) -> bool:
        if thread.os_thread_id is None:
            return thread.thread_name == "MainThread"
        return thread.os_thread_id == pid

    # py-spy orders by an address
    threads.sort(key=lambda one: (not is_main(one), one.os_thread_id or 0))
    sources = Sources.of(pid)
    stacks = tuple(
        one.stack(takes_lock=any(sources.takes_lock(o.filename, o.line) for o in one.frames[:1]))
        for one in threads
    )
    return ProcessStack(pid=pid, source=PY_SPY, threads=stacks)


# Local variables, taken when somebody asked for them

LONGEST_VALUE = 80
_CUT_WORD = re.compile(r"[^\s\"',;:=]*\.\.\.([\"'\])}]*)\Z")
MOST_VALUES = 16
"""Of one call: a function with more says nothing that anybody reads."""


def local_values(
    variables: Variables, pid: int, rank: int | None, tid: int | None
) -> Looked[tuple[LocalValues, ...]]:
    """Return the local variables of a thread's calls, of those that have any, outermost first.

    No code of the process runs: of an object without a plain value only its type and address are
    shown. Values behind a name that tells a secret are hidden, and what looks like one anywhere.
    """
    what = f"local variables of pid {pid}"

    def look() -> Looked[tuple[LocalValues, ...]]:
        frames = [frame for frame in reversed(variables.of(tid)) if frame.locals]
        if variables.why_not:
            return None, (Gap(what, rank, variables.why_not, "local_values"),)
        return tuple(LocalValues(one.place, _shown(one.locals or [])) for one in frames), ()

    return guarded("local_values", what, rank, look)


def _shown(variables: list[DumpedLocal]) -> dict[str, str]:
    """Hide secrets in whole values, then cut these: half a secret has no shape any more.

    The word in which py-spy cut a text is dropped: it may be the beginning of a secret.
    """
    values = {one.name: one.repr or "?" for one in variables[:MOST_VALUES]}
    whole = {
        name: value if len(value) < LONGEST_READ else _CUT_WORD.sub(r"...\1", value)
        for name, value in values.items()
    }
    return {
        name: value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}..."
        for name, value in redact_values(whole).items()
    }


# Native calls: a last look at a rank that a hang names, which pauses it

MOST_CALLS = 12
"""The innermost: what a thread waits in is among them, what led there Python shows."""
ADDRESS = "0x"


def native_calls(
    pid: int, rank: int | None, time_limit_s: float, tid: int | None = None
) -> Looked[tuple[str, ...]]:
    """Read the native calls inside the innermost Python frame of a thread, or of the main one.

    Takes 0.1 to 0.8 s and pauses the process meanwhile: for one that is stuck anyway, and of which
    no thread is stopped or in state D. Outermost first; calls without a symbol are left out.
    """
    what = f"native calls of pid {pid}"

    def look() -> Looked[tuple[str, ...]]:
        calls, why, remedy = None, "", ""
        try:
            calls = innermost_calls(dump(pid, time_limit_s, "--native"), tid or pid)
        except PySpyAbsent:
            why, remedy = ABSENT
        except (PySpyFailed, PySpyLate) as error:
            why = f"py-spy: {error}"
        return calls, (Gap(what, rank, why, "native_calls", remedy),) if why else ()

    return guarded("native_calls", what, rank, look)


def innermost_calls(data: bytes, tid: int) -> tuple[str, ...]:
    """Read them from py-spy's JSON. Pure.

    Raises:
        msgspec.MsgspecError: It is of another form.
    """
    threads = json_decoder(list[DumpedThread]).decode(data)
    calls: list[str] = []
    for frame in next((one.frames for one in threads if one.os_thread_id == tid), []):
        if frame.module is None:
            break
        if not frame.name.startswith(ADDRESS):
            calls.append(frame.name)
    return tuple(reversed(calls[:MOST_CALLS]))
