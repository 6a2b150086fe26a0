"""What a process's threads are to each other: who trains, who is joined, who has a lock, who helps.

The kernel shows a futex for every thread that joins another or takes a lock. Which thread is joined
stands in the variables of ``Thread.join``. Who has a lock no kernel and no variable tells: the
source shows which lock a line takes, and of which ``with`` block a call is inside, or of which
``try`` that gives a lock back in the end. A name of the file's own is one object; what begins with
a variable of a call's own, as ``self.lock`` does, is known by that variable's address. A lock that
is taken in any other way has no known holder.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from itertools import pairwise, takewhile
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.look.syntax import FUNCTIONS, around, names_of, spans, walk
from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.model.code_owner import is_ours, is_standard, is_users, only_serves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.look.py_spy import DumpedFrame, Variables
    from lightning_hangcheck.look.source import Sources
    from lightning_hangcheck.model.evidence import (
        Frame,
        ProcessStack,
        ProcessState,
        ThreadStack,
    )

THREADING = "/threading.py"
OF_ADDRESS = " at 0x"
"""In what py-spy shows of an object that is no plain value: its class and where it lives."""
DEEPEST = 32  # Calls outwards in which the holder of a lock is looked for


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
        line = read_process_stat(stack.pid, thread.tid)
        return (0 if line is None else line.started_ticks), thread.tid

    first = min(users, key=age)
    rest = (one for one in stack.threads if one is not first)
    return replace(stack, threads=(first, *rest))


def at_locks(stack: ProcessStack, sources: Sources) -> ProcessStack:
    """Say which threads stand at a line that takes a lock."""

    def takes(thread: ThreadStack) -> bool:
        return any(sources.takes_lock(inner.file, inner.line) for inner in thread.frames[-1:])

    threads = (replace(thread, takes_lock=takes(thread)) for thread in stack.threads)
    return replace(stack, threads=tuple(threads))


def with_bystanders(stack: ProcessStack, sources: Sources) -> ProcessStack:
    """Say which threads end no other one's wait by their source: a heartbeat, a reader of a log.

    And which may. Of what is the user's own: a library's thread does its work.
    """

    def marked(thread: ThreadStack) -> ThreadStack:
        own = [one for one in thread.frames if not (is_standard(one.file) or is_ours(one.file))]
        told = []
        for frame in own:
            found = sources.parsed(frame.file) if is_users(frame.file) else None
            told.append(None if found is None else found.calls.waking(frame.line))
        wakes, nothing = True in told, {*told} == {False}
        return replace(thread, bystander=nothing, wakes=wakes) if wakes or nothing else thread

    first, *others = stack.threads
    return replace(stack, threads=(first, *map(marked, others)))


def with_relations(
    stack: ProcessStack, kernel: ProcessState, sources: Sources, variables: Variables
) -> ProcessStack:
    """Say which threads others join, and who has the locks that threads take.

    Asks for variables only where a thread joins another and there are several that it may be, or
    where only variables tell whether two lines name one lock.
    """
    waits = [(one.tid, target.kind) for one in kernel.threads for target in one.waits_for]
    at_own = {tid for tid, kind in waits if kind == "futex"}
    # the futex of who joins a thread looks like a shared one until all processes were looked at
    at_words = at_own | {tid for tid, kind in waits if kind == "shared"}
    joining = [
        one for one in stack.threads if one.tid in at_words and any(map(_is_join, one.frames[-2:]))
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
        one.tid: holder
        for one in stack.threads
        if one.tid in at_own and (holder := _lock_holder(one, stack.threads, sources, variables))
    }
    threads = (
        replace(
            one,
            joined=joined.get(one.tid),
            holds_lock=one.tid in holders and holders[one.tid] == one.tid,
            held_by=holders.get(one.tid) if holders.get(one.tid) != one.tid else None,
        )
        for one in stack.threads
    )
    return replace(stack, threads=tuple(threads)) if joined or holders else stack


def _is_join(frame: Frame) -> bool:
    return frame.file.endswith(THREADING) and frame.function.rpartition(".")[2] == "join"


def _address(frame: DumpedFrame | None, name: str) -> str:
    """Where a variable's object lives; empty of plain values, which may be equal copies."""
    shown = "" if frame is None else frame.shown(name)
    return shown.rpartition(OF_ADDRESS)[2] if OF_ADDRESS in shown else ""


def _lock_holder(
    thread: ThreadStack, threads: Sequence[ThreadStack], sources: Sources, variables: Variables
) -> int | None:
    """Find the one thread that is inside the block of the lock that one takes.

    Not one behind which Python's own library waits for news. None where several may be it.
    """
    if not thread.frames:
        return None
    inner = thread.frames[-1]
    of_threading = inner.file.endswith(THREADING)
    # a ``with`` of a condition enters its lock, and a handler of logging takes its own for a caller
    name = inner.function.rpartition(".")[2]
    entered = name == ("__enter__" if of_threading else "acquire") and is_standard(inner.file)
    depth = len(thread.frames) - (2 if entered else 1)
    if depth < 0 or not (entered or (thread.takes_lock and not of_threading)):
        return None
    frame = thread.frames[depth]
    source = sources.parsed(frame.file)
    lock = locks_at(source.tree, frame).taken if source is not None else None
    if source is None or lock is None:
        return None
    wanted = "" if lock.of_file else _address(variables.at(thread.tid, depth, frame), lock.root)
    holders: set[int | None] = set()
    for other in threads:
        for at, call in list(enumerate(other.frames))[-DEEPEST:]:
            if call.file != frame.file or lock not in locks_at(source.tree, call).held:
                continue
            within = [one for one in other.frames[at:] if one.file == frame.file]
            released = any(lock in locks_at(source.tree, one).released for one in within)
            if released or _waits_for_news(other.frames[at:]):
                continue
            here = wanted and _address(variables.at(other.tid, at, call), lock.root) == wanted
            if lock.of_file or here:
                holders.add(other.tid)
    return holders.pop() if len(holders) == 1 else None


def _waits_for_news(frames: Sequence[Frame]) -> bool:
    """Whether a call with a lock waits behind it, and so may have given it back for that while.

    An event, a future, or a queue of Python's library waits behind a lock of its own.
    """
    of_library = is_standard(frames[0].file)
    if of_library:  # what it calls that is not its own gives nothing of its back
        frames = list(takewhile(lambda frame: is_standard(frame.file), frames))
    for caller, called in pairwise(frames):
        owner, _, name = called.function.rpartition(".")
        other = owner and not owner.endswith("Condition")  # before Python 3.11 no class is known
        waits = called.file.endswith(THREADING) and name in ("wait", "wait_for") and not other
        if waits and (of_library or not is_standard(caller.file)):
            return True
    return False


# Locks, as lines of source name them


class NamedLock(NamedTuple):
    """A lock as a line of source names it, and the variable with which that begins.

    ``of_file``: that is the file's own, so there is one of it; each call has its own ones.
    """

    text: str
    root: str
    of_file: bool


class LocksAt(NamedTuple):
    """What the function of a call does with locks.

    ``taken`` by the line itself: None where it takes none, or several. ``held`` by each ``with``
    block around it, or ``try`` with a ``release`` in its ``finally``; ``released`` by any other
    call of ``release``.
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
    at_end: set[ast.AST] = set()
    for node in walk(*ast.iter_child_nodes(function), into=False):
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

    def named(expressions: list[ast.expr]) -> tuple[NamedLock, ...]:
        return tuple(filter(None, (_named(tree, frame, expression) for expression in expressions)))

    one_taken = named(taken) if len(taken) == 1 else ()
    return LocksAt(next(iter(one_taken), None), named(held), named(released))


def _named(tree: ast.Module, frame: Frame, expression: ast.expr) -> NamedLock | None:
    """Read a lock's name; None of what may give another one each time, as a property."""
    root, *attributes = names_of(expression) or [""]
    functions = {getattr(one, "name", "") for one in walk(tree) if isinstance(one, FUNCTIONS)}
    if not root or functions & set(attributes):
        return None
    text = ast.unparse(expression)
    if any(attribute.startswith("__") and not attribute.endswith("__") for attribute in attributes):
        classes = [one for one in around(tree, frame.line) if isinstance(one, ast.ClassDef)]
        text += f" of {[klass.name for klass in classes][-1:]}"
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
        found += [const for const in code.co_consts if isinstance(const, CodeType)]
    return tuple(found)
