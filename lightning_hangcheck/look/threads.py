"""Relations of threads: who trains, is joined, or has a lock; and lock files that they poll for.

The kernel shows a futex for every thread that joins another or takes a lock. The variables of
``Thread.join`` show which thread is joined; nothing shows who has a lock. The source shows which
lock a line takes, and inside which ``with`` block, or ``try`` that releases a lock at its end, a
call is. A name of the file's own is one object; one that begins with a local variable, as
``self.lock``, is known by that variable's address. A lock taken otherwise has no known holder.
"""

from __future__ import annotations

import ast
import json
import os
import re
import socket
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck import machine
from lightning_hangcheck.look import proc
from lightning_hangcheck.look.kernel import descriptor_facts
from lightning_hangcheck.look.open_files import INODE, Opened, mounted_types, open_of, type_at
from lightning_hangcheck.look.stacks import BEGINNINGS, LONGEST_READ, DumpedFrame, Variables
from lightning_hangcheck.look.syntax import FUNCTIONS, around, names_of, spans, walk
from lightning_hangcheck.model.code_owner import is_ours, is_standard, is_users, only_serves
from lightning_hangcheck.model.evidence import (
    Frame,
    Holder,
    ProcessStack,
    ProcessState,
    ThreadStack,
    WaitTarget,
)
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightning_hangcheck.look.source import Sources

THREADING = "/threading.py"
OF_ADDRESS = " at 0x"
"""py-spy's text for an object that is no plain value: its class and its address."""


def training_first(
    stack: ProcessStack, sleeps_beside: Collection[int] | None = None
) -> ProcessStack:
    """Put the thread that trains first, if that is not the main thread.

    A process that serves others does so in its main thread and trains in another: an actor of Ray
    Train (ray 2.60, thread_runner.py), or a notebook. Such a main thread `only_serves`, and another
    thread runs the user's code. Of several, the oldest trains: it started the others.
    """
    main, *others = stack.threads
    users = [
        thread
        for thread in others
        if any(is_users(frame.file) for frame in thread.frames)
        and thread.tid not in (sleeps_beside or ())
    ]
    serves = only_serves((frame.function, frame.file) for frame in main.frames)
    if not users or not (serves or sleeps_beside is not None):
        return stack

    def age(thread: ThreadStack) -> tuple[int, int]:
        """Sort key, oldest first; without ids a stack has the newest first (faulthandler)."""
        if thread.tid is None:
            return 0, -stack.threads.index(thread)
        line = machine.read_process_stat(stack.pid, thread.tid)
        return (0 if line is None else line.started_ticks), thread.tid

    first = min(users, key=age)
    main = replace(main, bystander=sleeps_beside is not None)
    rest = (thread for thread in (main, *others) if thread is not first)
    return replace(stack, threads=(first, *rest))


def sleeping_beside(
    stack: ProcessStack, kernel: ProcessState, sources: Sources
) -> frozenset[int] | None:
    """Return the threads that sleep while the main thread only looks whether its threads live.

    None if the main thread does anything else.
    """
    inner = stack.threads[0].frames[-1:]
    if not any(sources.asks_for_threads(frame.file, frame.line) for frame in inner):
        return None
    return frozenset(
        thread.tid
        for thread in kernel.threads
        if {target.kind for target in thread.waits_for} == {"time"}
    )


def at_locks(stack: ProcessStack, sources: Sources) -> ProcessStack:
    """Mark the threads that are at a line that takes a lock."""

    def takes(thread: ThreadStack) -> bool:
        return any(sources.takes_lock(inner.file, inner.line) for inner in thread.frames[-1:])

    threads = (replace(thread, takes_lock=takes(thread)) for thread in stack.threads)
    return replace(stack, threads=tuple(threads))


def with_bystanders(stack: ProcessStack, sources: Sources) -> ProcessStack:
    """Mark threads that end no other thread's wait, by their source: a heartbeat, a log reader.

    Only threads of the user's code: a library's thread does the library's work. Native code that
    calls Python in a thread of its own, as autograd does, waits for the call's return.
    """

    def wants_lock(thread: ThreadStack) -> bool:
        inner = thread.frames[-1] if thread.frames else Frame("", "", 0)
        if is_users(inner.file) and sources.parsed(inner.file) is None:
            return True
        # what a condition's waiter takes, only a notification gives back
        notified = inner.file.endswith(THREADING) and inner.function.endswith("wait")
        return thread.takes_lock and not notified

    lock_wanted = any(map(wants_lock, stack.threads))

    def wakes(frame: Frame) -> bool | None:
        found = sources.parsed(frame.file) if is_users(frame.file) else None
        return None if found is None else found.calls.waking(frame.line, lock_wanted=lock_wanted)

    def marked(thread: ThreadStack) -> ThreadStack:
        own = [
            frame for frame in thread.frames if not (is_standard(frame.file) or is_ours(frame.file))
        ]
        begun = all(frame.function in BEGINNINGS for frame in thread.frames[:1])
        alone = begun and {*map(wakes, own)} == {False}
        return replace(thread, bystander=thread.bystander or alone)

    first, *others = stack.threads
    return replace(stack, threads=(first, *map(marked, others)))


def with_relations(
    stack: ProcessStack, kernel: ProcessState, sources: Sources, variables: Variables
) -> ProcessStack:
    """Say which threads others join, and who has the locks that threads take.

    Variables are read only if a thread joins another and several are possible, or if only variables
    show whether two lines name one lock.
    """
    waits = [(thread.tid, target.kind) for thread in kernel.threads for target in thread.waits_for]
    at_own = {tid for tid, kind in waits if kind == "futex"}
    # a joining thread's futex looks like a shared one until all processes were looked at
    at_words = at_own | {tid for tid, kind in waits if kind == "shared"}
    joining = [
        thread
        for thread in stack.threads
        if thread.tid in at_words and any(map(_is_join, thread.frames[-2:]))
    ]
    joined: dict[int | None, int] = {}
    if joining and len(stack.threads) > len(joining) + 1:
        born: dict[str, int] = {}
        for thread in stack.threads:
            frames = variables.of(thread.tid)
            if frames and frames[-1].filename.endswith(THREADING) and thread.tid is not None:
                born[_address(frames[-1], "self")] = thread.tid
        for thread in joining:
            inside = (frame for frame in variables.of(thread.tid) if _is_join(frame.place))
            awaited = next((_address(frame, "self") for frame in inside), "")
            if awaited and awaited in born:
                joined[thread.tid] = born[awaited]
    holders: dict[int | None, int] = {
        thread.tid: holder
        for thread in stack.threads
        if thread.tid in at_own
        and (holder := _lock_holder(thread, stack.threads, sources, variables))
    }
    threads = (
        replace(
            thread,
            joined=joined.get(thread.tid),
            holds_lock=thread.tid in holders and holders[thread.tid] == thread.tid,
            held_by=holders.get(thread.tid) if holders.get(thread.tid) != thread.tid else None,
        )
        for thread in stack.threads
    )
    return replace(stack, threads=tuple(threads)) if joined or holders else stack


def _is_join(frame: Frame) -> bool:
    return frame.file.endswith(THREADING) and frame.function.rpartition(".")[2] == "join"


def _address(frame: DumpedFrame | None, name: str) -> str:
    """Return the address of a variable's object; empty for plain values, which may be copies."""
    shown = "" if frame is None else frame.shown(name)
    return shown.rpartition(OF_ADDRESS)[2] if OF_ADDRESS in shown else ""


def _lock_holder(
    thread: ThreadStack, threads: Sequence[ThreadStack], sources: Sources, variables: Variables
) -> int | None:
    """Return the thread that is inside the block of the lock that ``thread`` takes.

    A thread that waits for a notification there does not count. None if several may be the holder.
    """
    if not thread.frames:
        return None
    inner = thread.frames[-1]
    of_threading = inner.file.endswith(THREADING)
    # a ``with`` of a condition enters its lock; a handler of logging takes its own for a caller
    name = inner.function.rpartition(".")[2]
    entered = name == ("__enter__" if of_threading else "acquire") and is_standard(inner.file)
    depth = len(thread.frames) - (2 if entered else 1)
    if depth < 0 or not (entered or (thread.takes_lock and not of_threading)):
        return None
    frame = thread.frames[depth]
    source = sources.parsed(frame.file)
    taken = locks_at(source.tree, frame)[0] if source is not None else ()
    if source is None or len(taken) != 1:
        return None
    (lock,) = taken
    # once for each line: a recursion is deep, and so is a signal's handler that is interrupted
    at_line = cache(partial(locks_at, source.tree))
    wanted = lock.root and _address(variables.at(thread.tid, depth, frame), lock.root)
    holders: set[int | None] = set()
    for other in threads if wanted or not lock.root else ():
        for at, call in enumerate(other.frames):
            if call.file != frame.file or lock not in at_line(call)[1]:
                continue
            within = [inner for inner in other.frames[at:] if inner.file == frame.file]
            released = any(lock in at_line(inside)[2] for inside in within)
            if released or _waits_for_news(other.frames[at:]):
                continue
            here = lock.root and _address(variables.at(other.tid, at, call), lock.root)
            if here == wanted:
                holders.add(other.tid)
    return holders.pop() if len(holders) == 1 else None


def _waits_for_news(frames: Sequence[Frame]) -> bool:
    """Whether a call inside a lock's block waits, and so may have released the lock meanwhile.

    An event, a future, or a queue of Python's library waits behind a lock of its own.
    """
    of_library = is_standard(frames[0].file)
    if of_library:  # what it calls outside the library gives back none of its locks
        frames = list(takewhile(lambda frame: is_standard(frame.file), frames))
    for caller, called in pairwise(frames):
        owner, _, name = called.function.rpartition(".")
        other = owner and not owner.endswith("Condition")  # before Python 3.11 the class is unknown
        waits = called.file.endswith(THREADING) and name in ("wait", "wait_for") and not other
        if waits and (of_library or not is_standard(caller.file)):
            return True
    return False


# Locks, as lines of source name them


class NamedLock(NamedTuple):
    """A lock as a line of source names it, and the local variable with which the name begins.

    Without such a variable it is the file's own, so there is only one.
    """

    text: str
    root: str


def locks_at(tree: ast.Module, frame: Frame) -> tuple[tuple[NamedLock, ...], ...]:
    """Return the locks that a call's function takes in its line, holds there, and releases.

    It holds the lock of each ``with`` block around the line, and of each ``try`` with a ``release``
    in its ``finally``. Empty for a line of other code; of several that a line takes, none counts.
    """
    functions = [node for node in around(tree, frame.line) if isinstance(node, FUNCTIONS)]
    name = getattr(functions[-1], "name", "<lambda>") if functions else "<module>"
    if name != frame.function.rpartition(".")[2]:
        return (), (), ()
    taken: list[ast.expr] = []
    held: list[ast.expr] = []
    released: list[ast.expr] = []
    at_end: set[ast.AST] = set()
    within: list[ast.AST] = [*functions] or [tree]
    scopes = [list(walk(*ast.iter_child_nodes(scope), into=False)) for scope in within]
    for node in scopes[-1]:
        if isinstance(node, ast.With):
            entered = [item.context_expr for item in node.items]
            header = max(expression.end_lineno or expression.lineno for expression in entered)
            if node.lineno == frame.line:
                taken += entered
            if header < node.body[0].lineno <= frame.line <= (node.end_lineno or 0):
                held += entered
        elif isinstance(node, ast.Try) and any(
            spans(statement, frame.line) for statement in node.body
        ):
            at_end.update(walk(*node.finalbody, into=False))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "acquire" and node.lineno == frame.line:
                taken.append(node.func.value)
            elif node.func.attr == "release":
                (held if node in at_end else released).append(node.func.value)
    if not (taken or held or released):
        return (), (), ()
    # variables that each call, or a call around it, has for itself; a property may return anything
    own: set[str] = set()
    for nodes in scopes if functions else ():
        own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        stored = (node for node in nodes if isinstance(node, ast.Name))
        own |= {name.id for name in stored if isinstance(name.ctx, ast.Store)}
        own -= {each for node in nodes if isinstance(node, ast.Global) for each in node.names}
    methods = {getattr(node, "name", "") for node in walk(tree) if isinstance(node, FUNCTIONS)}
    owner = [cls.name for cls in around(tree, frame.line) if isinstance(cls, ast.ClassDef)][-1:]

    def named(expressions: list[ast.expr]) -> tuple[NamedLock, ...]:
        found = []
        for expression in expressions:
            root, *parts = names_of(expression) or [""]
            if root and len(parts) < 2 and methods.isdisjoint(parts):
                private = any(part.startswith("__") and not part.endswith("__") for part in parts)
                text = f"{ast.unparse(expression)}{f' of {owner}' if private else ''}"
                found.append(NamedLock(text, root if root in own else ""))
        return tuple(found)

    return named(taken) if len(taken) == 1 else (), named(held), named(released)


# Locks that libraries poll for: the kernel sees only sleep, a variable in the stack names the lock.
# If the lock is the existence of a file, its maker is known by the process id that most write into
# it, or by who has it open. Nobody removes the lock of a killed maker. An empty file that nobody
# has open may be a script's, which will remove it, unless no other program makes such a file


class Library(NamedTuple):
    """A library that polls for a lock file."""

    name: str  # ``call`` of the target
    polls: str  # end of the path of the file in which it polls
    caller: str  # the same of the caller, which has the lock's path in a variable
    variable: str  # the name of that variable
    below: str = ""  # what is appended to its value
    limit: str = ""  # the time limit in ``polls``, alone or third in a tuple; negative: none
    marker: str = ""  # in the name of the lock's class if the lock is the existence of a file
    alone: bool = False  # no other program makes that file, and it is kept open while it is held


FILELOCK = "/filelock/_api.py"
FILELOCK_SINCE_4_3 = "/filelock/_core/_acquire.py"
LIBRARIES = (
    Library("filelock", FILELOCK, FILELOCK, "lock_filename", "", "timeout", "Soft"),
    Library(
        "filelock", FILELOCK_SINCE_4_3, FILELOCK_SINCE_4_3, "lock_filename", "", "wait", "Soft"
    ),
    Library(
        "baton.wait",  # torch's lock for building an extension, 1.0 to 2.13
        "/torch/utils/file_baton.py",
        "/torch/utils/cpp_extension.py",
        "build_directory",
        "/lock",
        alone=True,
    ),
)
NO_LIMIT = re.compile(r"(?:\([^,]*, [^,]*, )?-")
GOES_ON = "/huggingface_hub/utils/_fixes.py"
"""Its ``WeakFileLock`` asks filelock again after 10 s, for ever unless it has a limit too."""
READ_LIMIT_S = 0.5  # About 50 ms on a machine with 10,000 open files


def polled_locks(stack: ProcessStack, variables: Variables) -> dict[int, WaitTarget]:
    """Return the locks that threads poll for, by thread, with name and holder if known."""
    found = {}
    for thread in stack.threads:
        for library in LIBRARIES:
            polls = any(frame.file.endswith(library.polls) for frame in thread.frames)
            if polls and thread.tid is not None and thread.tid not in found:
                found[thread.tid] = _target(library, variables.of(thread.tid), stack.pid)
    return found


def _target(library: Library, frames: Sequence[DumpedFrame], pid: int) -> WaitTarget:
    def variable(file: str, name: str) -> str:
        """Return a variable's value as text, of the innermost call in a file that has it."""
        shown = (frame.shown(name) for frame in frames if frame.filename.endswith(file))
        return next(filter(None, shown), "")

    quoted, path = variable(library.caller, library.variable), ""
    if len(quoted) < LONGEST_READ:  # a text that py-spy cut is of no use
        with suppress(ValueError):
            path = f"{json.loads(quoted)}{library.below}"
    if path and not path.startswith("/"):  # it is polled for where its process is now
        with suppress(OSError):
            path = str(Path(f"/proc/{pid}/cwd").readlink() / path)
    maker = UNKNOWN
    if path and library.marker in variable(library.polls, "self"):
        with suppress(NoAnswer, OSError):
            maker = within(READ_LIMIT_S, lambda: maker_of(path, pid, alone=library.alone), of=pid)
    if any(frame.filename.endswith(GOES_ON) for frame in frames):
        limit = variable(GOES_ON, "timeout")
        for_ever = limit == "None"
    else:
        limit = variable(library.polls, library.limit) if library.limit else "-"
        for_ever = NO_LIMIT.match(limit) is not None
    return WaitTarget(
        call=library.name,
        kind="lock",
        name=path,
        holders=maker.holders,
        abandoned=maker.gone and for_ever,
        limited=bool(limit) and not for_ever,
    )


class Maker(NamedTuple):
    """Who made a file: the process, if it is known and alive, or that it is known to be gone."""

    holders: tuple[Holder, ...] = ()
    gone: bool = False


UNKNOWN = Maker()
LONGEST_RECORD = 1024
WRITTEN_PID = re.compile(r"\A\s*(\d{1,10})\s*(?:\Z|\n)|\bpid\b\W{0,4}(\d{1,10})\b", re.IGNORECASE)
"""A first line that is a number, or a number after the word: ``{"pid": 4711}``."""
WORDS = re.compile(r"[A-Za-z][\w.-]*")
NAMES = re.compile(r"[\w.-]+")
OWN = ("tmpfs", "overlay")
"""File systems of one container alone. Others may be mounted in containers whose processes it does
not see."""
LOCAL = (*OWN, "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")
"""File systems of one machine alone: no process elsewhere made a file there. Any other may be
shared with hosts whose processes are not seen here."""
INIT = 1  # Starts all others, and trains nothing itself if it may not be read
LATER_S = 2.0
"""A process that began so long after a file was written did not make it: its number was reused.
Clocks of files are coarse, and ticks are 0.01 s."""


def maker_of(path: str, pid: int, *, alone: bool = False) -> Maker:
    """Return who made a file whose removal a process waits for; the path is that process's.

    A maker counts as gone only if it would have to be among the processes that are seen here, and
    had the file open if nothing is written in it: that is sure of a library that makes it `alone`.
    """
    seen = Path(f"/proc/{pid}/root{path}")
    facts = seen.stat()
    text = ""
    if seen.is_file():
        with seen.open("rb") as file:
            text = file.read(LONGEST_RECORD).decode(errors="replace")
    mounts = mounted_types(proc.read_table("/proc/self/mounts"))
    sees_all = machine.pid_namespace() == machine.FIRST_PID_NAMESPACE
    local = type_at(os.path.realpath(path), mounts) in (LOCAL if sees_all else OWN)
    of_here = socket.gethostname() in NAMES.findall(text)
    ours = proc.shares_namespace(pid, "pid") and proc.shares_namespace(pid, "mnt")
    if not ours or not (local or of_here):
        return UNKNOWN
    found = WRITTEN_PID.search(text)
    if found is None:
        if not local or text.strip():
            return UNKNOWN
        opened = _that_has_open(path, facts)
        return opened if alone or opened.holders else UNKNOWN
    number = int(found[1] or found[2])
    nameless = {word.lower() for word in WORDS.findall(text)} <= {"pid"}
    # a container that is visible here may give this number to one of its processes
    if not (of_here or nameless) or any(
        proc.numbers_of(pid)[1:][-1:] == [number] for pid in machine.process_ids()
    ):
        return UNKNOWN
    alive = proc.vitals(number)
    began_before = proc.began_s(number) <= facts.st_mtime + LATER_S
    if alive is not None and not alive.has_ended and began_before:
        return Maker(holders=(Holder(pid=number, cpu_s=alive.cpu_s),))
    # a host or container of this name may be another one: its maker is not known to be gone
    return Maker(gone=True) if local else UNKNOWN


def _that_has_open(path: str, facts: os.stat_result) -> Maker:
    """Return which of the file owner's processes have it open; unknown if one is unreadable.

    By its path or its inode: another path may lead to it, as with a folder that is mounted twice.
    """

    def is_it(opened: Opened) -> bool:
        if opened.name == name or not opened.name.startswith("/"):
            return opened.name == name
        inode = INODE.search(descriptor_facts(opened.pid, opened.number))
        return inode is not None and int(inode[1]) == facts.st_ino

    name, holders = os.path.realpath(path), []
    for pid in machine.process_ids():
        try:
            if Path(f"/proc/{pid}").stat().st_uid != facts.st_uid:
                continue
            os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - names alone are wanted
        except proc.GONE:
            continue
        except OSError:
            if pid == INIT:
                continue
            return UNKNOWN
        alive = proc.vitals(pid) if any(map(is_it, open_of(pid))) else None
        if alive is not None:
            holders.append(Holder(pid=pid, cpu_s=alive.cpu_s))
    return Maker(holders=tuple(holders), gone=not holders)
