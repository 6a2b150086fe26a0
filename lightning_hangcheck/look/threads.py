"""What a process's threads are to each other: who trains, who is joined, who has a lock, who helps.

The kernel shows a futex for every thread that joins another or takes a lock. Which thread is joined
stands in the variables of ``Thread.join``. Who has a lock no kernel and no variable tells: the
source shows which lock a line takes, and of which ``with`` block a call is inside. A name of the
file's own is one object; what begins with a variable of a call's own, as ``self.lock`` does, is
known by that variable's address. A lock that is taken in any other way has no known holder.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.look.proc import read_stat
from lightning_hangcheck.look.syntax import FUNCTIONS, around, names_of, walk
from lightning_hangcheck.model.code_owner import is_ours, is_standard, is_users, only_serves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.look.py_spy import DumpedFrame, Variables
    from lightning_hangcheck.look.source import Sources
    from lightning_hangcheck.model.evidence import (
        Frame,
        ProcessStack,
        ProcessState,
        TargetKind,
        ThreadStack,
    )

THREADING = "/threading.py"


def training_first(stack: ProcessStack) -> ProcessStack:
    """Put the thread that trains first, where that is not the main one.

    A process that serves others keeps its main thread for them, and trains in a thread beside it:
    so does an actor of Ray Train (ray 2.60, thread_runner.py), and a notebook that trains in a
    thread. It is another where the main thread `only_serves`, and a thread beside it runs the
    user's code. Of several the one that was started first is it: it started the others.
    """
    main, *others = stack.threads
    users = [one for one in others if any(is_users(frame.file) for frame in one.frames)]
    if not users or not only_serves((frame.function, frame.file) for frame in main.frames):
        return stack

    def age(thread: ThreadStack) -> tuple[int, int]:
        """Sorts the oldest first; without ids the newest comes first in a stack (faulthandler)."""
        if thread.tid is None:
            return 0, -stack.threads.index(thread)
        try:
            return read_stat(stack.pid, thread.tid).started_ticks, thread.tid
        except OSError:
            return 0, thread.tid

    first = min(users, key=age)
    rest = (one for one in stack.threads if one is not first)
    return replace(stack, threads=(first, *rest))


def with_bystanders(stack: ProcessStack, sources: Sources) -> ProcessStack:
    """Say which threads end no other one's wait by their source: a heartbeat, a reader of a log.

    Only what is the user's own from end to end is asked: a library's thread does its work.
    """

    def ends_nothing(thread: ThreadStack) -> bool:
        for frame in thread.frames:
            if is_standard(frame.file) or is_ours(frame.file):
                continue
            found = sources.parsed(frame.file) if is_users(frame.file) else None
            if found is None or found.calls.waking(frame.line) is not False:
                return False
        return True

    first, *others = stack.threads
    asked = [one for one in others if any(is_users(frame.file) for frame in one.frames)]
    found = {one.tid for one in asked if ends_nothing(one)}
    marked = (replace(one, bystander=True) if one.tid in found else one for one in others)
    return replace(stack, threads=(first, *marked)) if found else stack


def with_relations(
    stack: ProcessStack, kernel: ProcessState, sources: Sources, variables: Variables
) -> ProcessStack:
    """Say which threads others join, and who has the locks that threads take.

    Asks for variables only where a thread joins another and there are several that it may be, or
    where only variables tell whether two lines name one lock.
    """

    def waiting(*kinds: TargetKind) -> set[int]:
        """Threads that wait, without a time limit, for a word of memory."""
        waits = ((one.tid, target.kind) for one in kernel.threads for target in one.waits_for)
        return {tid for tid, kind in waits if kind in kinds}

    # the futex of who joins a thread looks like a shared one until all processes were looked at
    at_words, at_own = waiting("futex", "shared"), waiting("futex")
    joining = [
        one for one in stack.threads if one.tid in at_words and any(map(_is_join, one.frames[-2:]))
    ]
    several = len(stack.threads) > len(joining) + 1
    joined = _joined(joining, stack.threads, variables) if joining and several else {}
    taking = [one for one in stack.threads if one.tid in at_own and takes(one)]
    holders = _lock_holders(taking, stack.threads, sources, variables)
    if not joined and not holders:
        return stack
    threads = (
        replace(
            one,
            joined=joined.get(one.tid),
            holds_lock=one.tid in holders and holders[one.tid] == one.tid,
            held_by=holders.get(one.tid) if holders.get(one.tid) != one.tid else None,
        )
        for one in stack.threads
    )
    return replace(stack, threads=tuple(threads))


def _is_join(frame: Frame) -> bool:
    return frame.file.endswith(THREADING) and frame.function.rpartition(".")[2] == "join"


def _joined(
    joining: Sequence[ThreadStack], threads: Sequence[ThreadStack], variables: Variables
) -> dict[int | None, int]:
    """Find by the addresses of their objects which threads are joined."""
    born: dict[str, int] = {}
    for thread in threads:
        frames = variables.of(thread.tid)
        if frames and frames[-1].filename.endswith(THREADING) and thread.tid is not None:
            born[address(frames[-1], "self")] = thread.tid
    found: dict[int | None, int] = {}
    for thread in joining:
        inside = (one for one in variables.of(thread.tid) if _is_join(one.place))
        awaited = next((address(one, "self") for one in inside), "")
        if awaited in born and awaited:
            found[thread.tid] = born[awaited]
    return found


OF_ADDRESS = " at 0x"
"""In what py-spy shows of an object that is no plain value: its class and where it lives."""


def address(frame: DumpedFrame, name: str) -> str:
    """Return where a variable's object lives; empty of plain values, which may be equal copies."""
    shown = frame.shown(name)
    return shown.rpartition(OF_ADDRESS)[2] if OF_ADDRESS in shown else ""


# Locks

ENTERS = "__enter__"
DEEPEST = 32
"""Calls outwards in which the holder of a lock is looked for."""


class NamedLock(NamedTuple):
    """A lock as a line of source names it, and the variable with which that begins.

    ``of_file``: that is the file's own, so there is one of it; each call has its own ones.
    """

    text: str
    root: str
    of_file: bool


def takes(thread: ThreadStack) -> bool:
    """Whether it takes a lock, not one behind which Python's own library waits for news."""
    if not thread.frames:
        return False
    own = thread.takes_lock and not thread.frames[-1].file.endswith(THREADING)
    return own or _enters(thread)


def _enters(thread: ThreadStack) -> bool:
    """Whether it is in a ``with`` of a condition, which enters its lock."""
    inner = thread.frames[-1]
    named = inner.function.rpartition(".")[2] == ENTERS
    return len(thread.frames) > 1 and named and inner.file.endswith(THREADING)


def _lock_holders(
    taking: Sequence[ThreadStack],
    threads: Sequence[ThreadStack],
    sources: Sources,
    variables: Variables,
) -> dict[int | None, int]:
    """Find the one thread that is inside the ``with`` block of the lock that each one takes."""
    found: dict[int | None, int] = {}
    for thread in taking:
        depth = len(thread.frames) - (2 if _enters(thread) else 1)
        frame = thread.frames[depth]
        source = sources.parsed(frame.file)
        lock = locks_at(source.tree, frame).taken if source is not None else None
        if source is None or lock is None:
            continue
        own = None if lock.of_file else variables.at(thread.tid, depth, frame)
        wanted = address(own, lock.root) if own is not None else ""
        holders: set[int | None] = set()
        for tid, at, call in _inside(source.tree, frame.file, lock, threads):
            there = None if lock.of_file else variables.at(tid, at, call)
            same = wanted and there is not None and address(there, lock.root) == wanted
            if lock.of_file or same:
                holders.add(tid)
        if len(holders) == 1 and (holder := holders.pop()) is not None:
            found[thread.tid] = holder
    return found


def _inside(
    tree: ast.Module, file: str, lock: NamedLock, threads: Sequence[ThreadStack]
) -> Iterator[tuple[int | None, int, Frame]]:
    """Find the calls that are inside of a lock by that name: thread, depth and place of each."""
    for thread in threads:
        for depth, frame in list(enumerate(thread.frames))[-DEEPEST:]:
            if frame.file != file or lock not in locks_at(tree, frame).held:
                continue
            inner = thread.frames[depth:]
            released = (locks_at(tree, one).released for one in inner if one.file == file)
            if not _waits_for_news(inner) and not any(lock in locks for locks in released):
                yield thread.tid, depth, frame


def _waits_for_news(frames: Sequence[Frame]) -> bool:
    """Whether a call with a lock waits behind it, and so may have given it back for that while.

    An event, a future, or a queue of Python's library waits behind a lock of its own.
    """
    of_library = is_standard(frames[0].file)
    for caller, called in pairwise(frames):
        owner, _, name = called.function.rpartition(".")
        other = owner and not owner.endswith("Condition")  # before Python 3.11 no class is known
        waits = called.file.endswith(THREADING) and name in ("wait", "wait_for") and not other
        if waits and (of_library or not is_standard(caller.file)):
            return True
    return False


class LocksAt(NamedTuple):
    """What the function of a call does with locks.

    ``taken`` by the line itself: None where it takes none, or several. ``held`` by each ``with``
    block around it; ``released`` by any call of ``release``.
    """

    taken: NamedLock | None
    held: tuple[NamedLock, ...]
    released: tuple[NamedLock, ...]


def locks_at(tree: ast.Module, frame: Frame) -> LocksAt:
    """Read the locks of a call; of a line that is in other code, too, nothing is told."""
    functions = [one for one in around(tree, frame.line) if isinstance(one, FUNCTIONS)]
    function = functions[-1] if functions else tree
    name = getattr(function, "name", "<lambda>") if functions else "<module>"
    if name != frame.function.rpartition(".")[2]:
        return LocksAt(None, (), ())
    taken: list[ast.expr] = []
    held: list[ast.expr] = []
    released: list[ast.expr] = []
    for node in walk(*ast.iter_child_nodes(function), into=False):
        if isinstance(node, ast.With):
            entered = [item.context_expr for item in node.items]
            header = max(one.end_lineno or one.lineno for one in entered)
            if node.lineno == frame.line:
                taken += entered
            if header < node.body[0].lineno <= frame.line <= (node.end_lineno or 0):
                held += entered
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "acquire" and node.lineno == frame.line:
                taken.append(node.func.value)
            elif node.func.attr == "release":
                released.append(node.func.value)

    def named(expressions: list[ast.expr]) -> tuple[NamedLock, ...]:
        return tuple(filter(None, (_named(tree, frame, one) for one in expressions)))

    one_taken = named(taken) if len(taken) == 1 else ()
    return LocksAt(next(iter(one_taken), None), named(held), named(released))


def _named(tree: ast.Module, frame: Frame, expression: ast.expr) -> NamedLock | None:
    """Read a lock's name; None of what may give another one each time, as a property."""
    root, *attributes = names_of(expression) or [""]
    functions = {getattr(one, "name", "") for one in walk(tree) if isinstance(one, FUNCTIONS)}
    if not root or functions & set(attributes):
        return None
    text = ast.unparse(expression)
    if any(one.startswith("__") and not one.endswith("__") for one in attributes):
        classes = [one for one in around(tree, frame.line) if isinstance(one, ast.ClassDef)]
        text += f" of {[one.name for one in classes][-1:]}"
    name, of_file = frame.function.rpartition(".")[2], False
    for code in _all_code(tree):
        if code.co_name == name and frame.line in {line for _, _, line in code.co_lines()}:
            of_file = root not in {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return NamedLock(text, root, of_file)


@lru_cache(maxsize=1)
def _all_code(tree: ast.Module) -> tuple[CodeType, ...]:
    """Compile a file: that tells whose the variables of each of its functions are."""
    found = [compile(tree, "<source>", "exec")]
    for code in found:
        found += [one for one in code.co_consts if isinstance(one, CodeType)]
    return tuple(found)
