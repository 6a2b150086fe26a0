"""What a process's threads are to each other: who trains, who is joined, who has a lock, who helps.

The kernel shows a futex for every thread that joins another or takes a lock. Which thread is joined
stands in the variables of ``Thread.join``. Who has a lock no kernel and no variable tells: the
source shows which lock a line takes, and of which ``with`` block a call is inside. A name of the
file's own is one object; what begins with a variable of a call's own, as ``self.lock`` does, is
known by that variable's address. A lock that is taken in any other way has no known holder.
"""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.look.proc import read_stat
from lightning_hangcheck.look.syntax import FUNCTIONS, around, called_name
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
    so does an actor of Ray Train (ray 2.60, thread_runner.py), whose main thread answers every two
    seconds that it lives, and a notebook that trains in a thread. It is another where the main
    thread `only_serves`, and a thread beside it runs the user's code. Of several the one that was
    started first is it: it started the others.
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
    # the futex of who joins a thread looks like a shared one until all processes were looked at
    joining = [
        one
        for one in stack.threads
        if one.tid in _waiting(kernel, "futex", "shared") and joins(one)
    ]
    joining = joining if len(stack.threads) > len(joining) + 1 else []
    joined = _joined(joining, stack.threads, variables)
    taking = [one for one in stack.threads if one.tid in _waiting(kernel, "futex") and takes(one)]
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


def _waiting(kernel: ProcessState, *kinds: TargetKind) -> frozenset[int]:
    """Threads that wait, without a time limit, for a word of memory."""
    return frozenset(
        one.tid for one in kernel.threads if any(target.kind in kinds for target in one.waits_for)
    )


# Joins


def joins(thread: ThreadStack) -> bool:
    """Whether a thread waits for the end of another one."""
    return any(map(_is_join, thread.frames[-2:]))


def _is_join(frame: Frame) -> bool:
    return frame.file.endswith(THREADING) and frame.function.rpartition(".")[2] == "join"


def _joined(
    joining: Sequence[ThreadStack], threads: Sequence[ThreadStack], variables: Variables
) -> dict[int | None, int]:
    """Find by the addresses of their objects which threads are joined."""
    if not joining:
        return {}
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
    """A lock as a line of source names it.

    Attributes:
        text: As written, for example ``self.lock``; of a private attribute its class, too.
        root: The variable with which that begins.
        of_file: That variable is the file's own, so there is one of it. Each call has its own ones,
            and so have those functions that use the variables of a function around them.
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
        lock = lock_taken(source.tree, frame) if source is not None else None
        if source is None or lock is None:
            continue
        places = _inside(source.tree, frame.file, lock, threads)
        if not lock.of_file:
            own = variables.at(thread.tid, depth, frame) if places else None
            wanted = address(own, lock.root) if own is not None else ""
            places = [
                (tid, at, call)
                for tid, at, call in places
                if (there := variables.at(tid, at, call)) is not None
                and wanted
                and address(there, lock.root) == wanted
            ]
        holders = {tid for tid, _, _ in places}
        if len(holders) == 1 and (holder := holders.pop()) is not None:
            found[thread.tid] = holder
    return found


def _inside(
    tree: ast.Module, file: str, lock: NamedLock, threads: Sequence[ThreadStack]
) -> list[tuple[int | None, int, Frame]]:
    """Find the calls that are inside of a lock by that name: thread, depth and place of each."""
    found = []
    for thread in threads:
        for depth, frame in list(enumerate(thread.frames))[-DEEPEST:]:
            if frame.file != file or lock not in locks_held(tree, frame):
                continue
            inner = thread.frames[depth:]
            further_in = (one for one in inner if one.file == file)
            if not _waits_for_news(inner) and not any(lets_go(tree, o, lock) for o in further_in):
                found.append((thread.tid, depth, frame))
    return found


def _waits_for_news(frames: Sequence[Frame]) -> bool:
    """Whether a call with a lock waits behind it, and so may have given it back for that while.

    An event, a future, or a queue of Python's library waits behind a lock of its own.
    """
    of_library = is_standard(frames[0].file)
    return any(
        _may_be_condition(called) and (of_library or not is_standard(caller.file))
        for caller, called in pairwise(frames)
    )


def _may_be_condition(frame: Frame) -> bool:
    """Whether it is a condition's wait: before Python 3.11 the class is not known."""
    owner, _, name = frame.function.rpartition(".")
    known = owner and not owner.endswith("Condition")
    return frame.file.endswith(THREADING) and name in ("wait", "wait_for") and not known


def lock_taken(tree: ast.Module, frame: Frame) -> NamedLock | None:
    """Return the lock that a line takes; None where it takes none, or several, or by no name."""
    found: list[ast.expr] = []
    for node in _own(_function(tree, frame)):
        if isinstance(node, ast.With) and node.lineno == frame.line:
            found += [item.context_expr for item in node.items]
        elif isinstance(node, ast.Call) and node.lineno == frame.line:
            found += _called_on(node, "acquire")
    return _named(tree, frame, found[0]) if len(found) == 1 else None


def locks_held(tree: ast.Module, frame: Frame) -> list[NamedLock]:
    """Find what a call is inside of by its line: what each ``with`` block around it has taken."""
    function = _function(tree, frame)
    found: list[ast.expr] = []
    for node in around(function, frame.line):
        if isinstance(node, ast.With):
            taken = [item.context_expr for item in node.items]
            header = max(one.end_lineno or one.lineno for one in taken)
            found += taken if header < node.body[0].lineno <= frame.line else []
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            found = []
    named = (_named(tree, frame, one) for one in found)
    return [one for one in named if one is not None]


def lets_go(tree: ast.Module, frame: Frame, lock: NamedLock) -> bool:
    """Whether a call's function releases such a lock by itself."""
    calls = (node for node in _own(_function(tree, frame)) if isinstance(node, ast.Call))
    return any(
        _named(tree, frame, one) == lock for node in calls for one in _called_on(node, "release")
    )


def _function(tree: ast.Module, frame: Frame) -> ast.AST | None:
    """Return the function whose call this is; None where its line is in other code, too."""
    functions = [one for one in around(tree, frame.line) if isinstance(one, FUNCTIONS)]
    name = getattr(functions[-1], "name", "<lambda>") if functions else "<module>"
    known = name == frame.function.rpartition(".")[2]
    return (functions[-1] if functions else tree) if known else None


def _named(tree: ast.Module, frame: Frame, expression: ast.expr) -> NamedLock | None:
    """Read a lock's name; None of what may give another one each time, as a property."""
    inner, attributes = expression, set()
    while isinstance(inner, ast.Attribute):
        attributes.add(inner.attr)
        inner = inner.value
    functions = {getattr(one, "name", "") for one in ast.walk(tree) if isinstance(one, FUNCTIONS)}
    if not isinstance(inner, ast.Name) or attributes & functions:
        return None
    scopes = [*around(tree, frame.line)]
    text = ast.unparse(expression)
    if any(one.startswith("__") and not one.endswith("__") for one in attributes):
        text += f" of {[one.name for one in scopes if isinstance(one, ast.ClassDef)][-1:]}"
    return NamedLock(text, inner.id, _is_of_file(inner.id, scopes))


def _is_of_file(name: str, scopes: Sequence[ast.AST]) -> bool:
    """Whether a variable is the file's own, by the functions around a line."""
    for function in (one for one in reversed(scopes) if isinstance(one, FUNCTIONS)):
        own = [*_own(function)]
        if any(isinstance(one, ast.Global) and name in one.names for one in own):
            return True
        if any(name in _bound(one) for one in own):
            return False
    return True


def _called_on(call: ast.Call, method: str) -> list[ast.expr]:
    """On what a method of that name is called."""
    found = isinstance(call.func, ast.Attribute) and called_name(call) == method
    return [call.func.value] if found and isinstance(call.func, ast.Attribute) else []


def _own(function: ast.AST | None) -> Iterator[ast.AST]:
    """What belongs to a function or a file, without what is in functions and classes within."""
    left = [*ast.iter_child_nodes(function)] if function is not None else []
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            left += ast.iter_child_nodes(node)


def _bound(node: ast.AST) -> Sequence[str]:
    """Return the names to which a piece of code gives a value."""
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return [node.name or ""]
    return []
