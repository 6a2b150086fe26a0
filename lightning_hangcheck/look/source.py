"""Reads source code: each file once for all threads, and the code around the lines of ranks.

A file is read as its process sees it, in its container, and only if it has not changed since that
process began. What a thread runs from a line on is read from the source, with functions of the same
file. If a call may do anything (a function passed in, or of another user file), the answer is None.
"""

from __future__ import annotations

import ast
import builtins
import collections
import io
import logging
import pathlib
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from lightning_hangcheck import log
from lightning_hangcheck.files import read_regular
from lightning_hangcheck.look.proc import began_s, root_of
from lightning_hangcheck.look.syntax import (
    FUNCTIONS,
    LOOPS,
    ONE_RANK_ONLY,
    RankTests,
    around,
    called_name,
    last_name,
    names_of,
    span,
    spans,
    walk,
)
from lightning_hangcheck.model.case import CodeNote
from lightning_hangcheck.model.code_owner import is_users, owner_of
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lightning_hangcheck.model.evidence import Frame

    Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef"
    Conditional: TypeAlias = "ast.If | ast.IfExp | ast.While"
    Answer: TypeAlias = "bool | None"

READ_LIMIT_S = 0.2
RETRY_AFTER_S = 30.0  # A folder whose storage did not answer is not asked for so long
LARGEST_FILE = 512 * 1024
TEXT_KEPT = 4 * 1024 * 1024  # Bytes of all files together
TREES_KEPT = 256 * 1024
"""The same for files that are kept parsed, which takes about 60 times as much: 15 MB."""
TAKES_LOCK = re.compile(rb"^\s*with\s[^()#]*:[^()#]*(#.*)?$|\.acquire\(")
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError)


class _File:
    """What was read of a file, once; notes are by line."""

    def __init__(self, path: Path) -> None:
        self.text: bytes | None = None  # None if it cannot be read or is too large
        self.changed_s = 0.0  # mtime before it was read, seconds since 1970
        self.notes: dict[int, CodeNote] = {}
        with suppress(OSError):
            facts = path.stat()
            if facts.st_size <= LARGEST_FILE:
                self.text = read_regular(path, LARGEST_FILE)
            self.changed_s = facts.st_mtime
        self.read_s = time.time()

    @cached_property
    def lines(self) -> list[bytes]:
        return (self.text or b"").splitlines()

    def __len__(self) -> int:
        return len(self.text or b"")


_files: OrderedDict[str, _File] = OrderedDict()
_trees: OrderedDict[str, tuple[_File, Parsed]] = OrderedDict()
_silent_folders: dict[str, float] = {}
_keeping = threading.RLock()
"""Held while a file is parsed, never while one is read."""


class Sources(NamedTuple):
    """The source files of a process, below its own ``root`` if it has one.

    A file changed after ``unchanged_since_s`` (seconds since 1970) is not what runs.
    """

    root: str
    unchanged_since_s: float

    @classmethod
    def of(cls, pid: int) -> Sources:
        """Return the sources of a process, as long as it lives."""
        return cls(root_of(pid), began_s(pid))

    def takes_lock(self, file: str, line: int) -> bool:
        """Whether the line is a ``with`` statement that calls nothing, or calls ``acquire``.

        A thread whose innermost Python frame is there, and which the kernel shows in a futex
        without a time limit, waits for a lock: anything else that such a line calls has a frame.
        """
        found = self._file(file)
        lines = found.lines if found is not None else []
        return 0 < line <= len(lines) and TAKES_LOCK.search(lines[line - 1]) is not None

    def asks_for_threads(self, file: str, line: int) -> bool:
        """Whether a line of the user's is in a loop that asks whether threads live, or pauses."""
        found = self.parsed(file) if is_users(file) else None
        return found is not None and found.asks_for_threads(line)

    def parsed(self, file: str) -> Parsed | None:
        """Parse a file or return the kept tree: 16 threads that ask at once make one tree.

        None if the file cannot be read, is no Python, or is not what runs.
        """
        read = self._file(file)
        if read is None:
            return None
        path = self.root + file
        with _keeping:
            of_file, found = _trees.pop(path, (None, None))
            if found is None or of_file is not read:
                try:
                    tree = ast.parse(read.text or b"")
                except UNREADABLE:
                    return None
                try:
                    found = Parsed(tree, partial(self._imported, file))
                except Exception as error:  # noqa: BLE001 - ours; verdicts do without this file
                    log.once(f"source {path}", f"{path} is judged without its source: {error!r}")
                    return None
            _trees[path] = read, found
            kept = sum(len(source) for source, _ in _trees.values())
            while kept > TREES_KEPT and len(_trees) > 1:
                kept -= len(_trees.popitem(last=False)[1][0])
        return found

    def _imported(self, file: str, module: str, level: int) -> Parsed | None:
        """Return the user's file that another imports: by a path relative to that other's."""
        folders = Path(file).parents
        below = module.replace(".", "/")
        near = folders[level - 1 : level] if level else folders[:MOST_FOLDERS]
        for folder in near:
            for path in (f"{folder}/{below}.py", f"{folder}/{below}/__init__.py"):
                if module and is_users(path) and (found := self.parsed(path)) is not None:
                    return found
        return None

    def note(self, file: str, line: int) -> CodeNote | None:
        """Describe the code around a line."""
        found = self._file(file)
        if found is not None and line not in found.notes:
            parsed = self.parsed(file)
            if parsed is not None:
                found.notes[line] = parsed.note(file, line)
        return None if found is None else found.notes.get(line)

    def _file(self, file: str) -> _File | None:
        """Read a file, or return what was kept if that was read after the process began.

        None if the file is not available, also because its storage does not answer.
        """
        if not file.startswith("/"):
            return None
        path = self.root + file
        with _keeping:
            found = _files.get(path)
        if found is None or found.read_s < self.unchanged_since_s:
            folder = path.rpartition("/")[0]
            if time.monotonic() < _silent_folders.get(folder, 0.0):
                return None
            try:
                found = within(READ_LIMIT_S, lambda: _File(Path(path)))
            except NoAnswer:
                _silent_folders[folder] = time.monotonic() + RETRY_AFTER_S
                return None
            with _keeping:
                _files[path] = found
                kept = sum(map(len, _files.values()))
                while kept > TEXT_KEPT and len(_files) > 1:
                    kept -= len(_files.popitem(last=False)[1])
        changed = found.changed_s > self.unchanged_since_s
        return None if changed or found.text is None else found


MOST_LINES = 256
MOST_FOLDERS = 4
"""Folders, from that of a file upwards, that may be the root of its imports."""


def code_notes(
    frames: Sequence[Frame], unchanged_since_s: float, time_limit_s: float, root: str = ""
) -> tuple[CodeNote, ...]:
    """Read the code around lines within a time limit, except torch's and Python's own files.

    A file that cannot be read, is no Python, or was changed after the job began gives no note. The
    user's own files are read first. ``root`` and ``unchanged_since_s`` as in `Sources`.
    """
    deadline = time.monotonic() + time_limit_s
    sources = Sources(root, unchanged_since_s)
    owners = {file: owner_of(file) for file in {frame.file for frame in frames}}
    # frameworks test the rank, too
    read = {
        file
        for file, owner in owners.items()
        if owner.kind == "user" or (owner.kind == "framework" and owner.package != "torch")
    }
    lines = {(frame.file, frame.line) for frame in frames if frame.file in read}
    found: list[CodeNote] = []
    for file, line in sorted(lines, key=lambda place: (not is_users(place[0]), place))[:MOST_LINES]:
        if time.monotonic() > deadline:
            break
        with suppress(*UNREADABLE):
            note = sources.note(file, line)
            found += [note] if note is not None else []
    return tuple(found)


# Around a line: loops, and tests of the rank

LONGEST_TEST = 120
ENDS = frozenset({"is_completed", "is_success", "query", "done", "is_done", "completed", "test"})
"""Calls that ask whether something has ended: torch's Work, futures, events, MPI's requests."""
AWAITS = ENDS | {"wait", "wait_all", "synchronize", "result", "value"}
"""Calls that wait for the end of something that was started before."""
LIMIT = "timeout"
"""The keyword by which a call that waits is given a time limit."""
TAKE_LIMIT = frozenset({"wait", "result"})
"""Methods that take it as their first argument, too: of torch's Work, and of futures."""
OF_MANY = frozenset({"futures", "asyncio", "connection"})
"""Modules whose ``wait`` takes what it waits for first; a store's takes a list of keys."""
PAUSES = frozenset({"pause", "sigwait"})
"""Calls in which a main thread waits for the end of the program."""
BACKWARD = frozenset({"backward"})
PARTS_OF_A_MODEL = frozenset({"parameters", "named_parameters", "buffers", "named_buffers"}) | {
    *("modules", "named_modules", "children", "named_children", "param_groups"),
}
"""All ranks have equally many of these, so none leaves a loop over them before the others."""
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
MANAGED = (ast.With, ast.AsyncWith)
ALWAYS_RUN = (ast.Expr, ast.Assign, ast.AnnAssign, *MANAGED)
LOOPS_OVER_SOME = (ast.For, ast.AsyncFor)  # In a loop over epochs, the one over batches has items
BLOCKS = ("body", "orelse", "finalbody")


class Parsed:
    """A file's tree: its names for the rank, its calls, and which functions run backward."""

    def __init__(
        self,
        tree: ast.Module,
        read: Callable[[str, int], Parsed | None] = lambda _module, _level: None,
    ) -> None:
        def ranks_in(module: str, level: int) -> RankTests | None:
            found = read(module, level)
            return None if found is None else found.ranks

        self.tree = tree
        self.ranks = RankTests(tree, read=ranks_in, under=True)
        self.calls = CallsAhead(tree, read)
        self._run_backward = BACKWARD | {
            child.name
            for child in ast.walk(tree)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            and BACKWARD & _called(child)
        }

    def asks_for_threads(self, line: int) -> bool:
        """Whether a line is in a loop that asks whether threads live, or only pauses."""
        path = [*around(self.tree, line)]
        loops = (below for node in path if isinstance(node, LOOPS) for below in ast.walk(node))
        calls = (names_of(node.func) for node in loops if isinstance(node, ast.Call))
        asked = (names[-2] for names in calls if len(names) > 1 and names[-1] == "is_alive")
        made = (value for name in asked for value in self.ranks.values_of(name))
        pauses = any(called_name(node) in PAUSES for node in path)
        return pauses or any(called_name(value).endswith("Thread") for value in made)

    def note(self, file: str, line: int) -> CodeNote:
        """Describe a line by the code around it in its innermost function or class."""
        path = [self.tree, *around(self.tree, line, last=True)]
        scopes = (*FUNCTIONS, ast.ClassDef)
        start = max((at for at, node in enumerate(path) if isinstance(node, scopes)), default=0)
        function, test, test_line, of_most, skipped_under = path[start], "", 0, False, ""
        ahead, (loop_ends, after_loop) = self.calls.collectives(line), self.calls.behind_loop(line)
        loops: list[ast.For | ast.AsyncFor | ast.While] = []
        branches: list[tuple[tuple[int, int], str]] = []
        awaits, limited, retried, until = False, False, list[str](), 0
        for decorator in getattr(function, "decorator_list", ()):
            text = _shown(decorator)
            if ONE_RANK_ONLY.search(text) and not spans(decorator, line):
                test, test_line = f"@{text}", decorator.lineno
        in_call = False
        for scope, inner in pairwise(path[max(0, start - 1) :]):
            led: list[ast.expr] = []
            if isinstance(inner, LOOPS):
                loops.append(inner)
                over = last_name(inner.iter) if isinstance(inner, LOOPS_OVER_SOME) else ""
                led = [self.ranks.grown[over]] if over in self.ranks.grown else []
            # tests that leave the block before a statement: ``if rank: return``
            block = next((block for block in _blocks(scope) if inner in block), [])
            ifs = (
                statement
                for statement in block
                if isinstance(statement, ast.If) and span(statement)[1] < span(inner)[0]
            )
            exits = [statement for statement in ifs if isinstance(statement.body[-1], LEAVES)]
            for statement in exits:
                behind = ((statement.end_lineno or statement.lineno) + 1, span(block[-1])[1])
                leaves = ast.unparse(statement.body[-1]).partition(" ")[0]
                branches.append((behind, f"if {_shown(statement.test)}: {leaves}"))
            for statement in [statement for statement in exits if self.ranks.asks(statement.test)][
                :1
            ]:
                if self.ranks.of_one(statement.test):
                    skipped_under = _shown(statement.test)
                else:
                    test, test_line = _shown(_negated(statement.test)), statement.test.lineno
                    of_most = False
            if isinstance(inner, (ast.If, ast.IfExp, ast.While)):
                inside, part = _side(inner, line)
                if part and not isinstance(inner, ast.While):
                    word = "if" if inside else "else of if"
                    place = (span(part[0])[0], span(part[-1])[1])
                    branches.append((place, f"{word} {_shown(inner.test)}"))
                led = [inner.test if inside else _negated(inner.test)] if part else []
            elif isinstance(inner, ast.match_case) and isinstance(scope, ast.Match):
                branches.append((span(inner), f"case {ast.unparse(inner.pattern)}"))
                led = [_of_case(scope, inner)]
            elif isinstance(inner, ast.BoolOp):
                led = [] if in_call else _before_call(inner)
            elif isinstance(inner, ast.ExceptHandler):
                caught = f" {_shown(inner.type)}" if inner.type is not None else ""
                branches.append((span(inner), f"except{caught}"))
            elif isinstance(inner, MANAGED) and inner.lineno == line:
                until = span(inner)[1]
            elif isinstance(inner, ast.Call):
                awaits, in_call = awaits or called_name(inner).lstrip("_") in AWAITS, True
                given = [word.value for word in inner.keywords if word.arg == LIMIT]
                of = inner.func.value if isinstance(inner.func, ast.Attribute) else None
                if called_name(inner) in TAKE_LIMIT and of and last_name(of) not in OF_MANY:
                    given += [each for each in inner.args[:1] if not isinstance(each, ast.List)]
                limited = limited or any(ast.unparse(value) != "None" for value in given)
                led = [inner.func] if self._asks_table(inner.func) else []
            for holds in filter(self.ranks.asks, led):
                test, test_line = _shown(holds), holds.lineno
                # every rank may find a call in a table, so that is a weaker sign
                of_most = self.ranks.of_one(holds) is False or holds is getattr(inner, "func", None)
            if isinstance(inner, LOOPS):
                retried = _caught_in(inner, line)
        body = getattr(function, "body", []) if start else []
        after = self._after_backward(body, line, ALWAYS_RUN)
        over_some = ALWAYS_RUN + LOOPS_OVER_SOME
        after = after or any(self._after_backward(loop.body, line, over_some) for loop in loops)
        return CodeNote(
            file=file,
            line=line,
            condition=test,
            condition_line=test_line,
            condition_of_most=of_most,
            skipped_under=skipped_under,
            loops=tuple(span(loop) for loop in loops if _is_of_work(loop)),
            branches=tuple(place for place, _ in branches),
            branch_tests=tuple(text for _, text in branches),
            with_until=until,
            caught=tuple(dict.fromkeys(retried)),
            limited=limited,
            awaits=awaits or not ENDS.isdisjoint(_called(*loops)),
            after_backward=after,
            collectives_ahead=ahead if ahead or is_users(file) else None,
            collectives_timed=self.calls.timed,
            loop_ends=loop_ends,
            collectives_behind=after_loop if after_loop or is_users(file) else None,
        )

    def _asks_table(self, called: ast.expr) -> bool:
        """Whether a table of functions tells by the rank what is called: ``duties[rank]()``."""
        if isinstance(called, ast.Subscript):
            return self.ranks.asks(called.slice)
        asked = called.args[:1] if isinstance(called, ast.Call) else []
        return any(called_name(called) == "get" and self.ranks.asks(index) for index in asked)

    def _after_backward(
        self, body: list[ast.stmt] | ast.expr, line: int, always: tuple[type[ast.stmt], ...]
    ) -> bool:
        """Whether a line of a block, in each pass of a loop, is reached only after a backward.

        Statements of the kinds in ``always`` run their content unconditionally.
        """
        block = body if isinstance(body, list) else []
        while block:
            before = (
                statement
                for statement in block
                if isinstance(statement, always) and span(statement)[1] < line
            )
            if any(self._run_backward & _called(statement) for statement in before):
                return True
            inner = next((statement for statement in block if spans(statement, line)), None)
            within = (
                block for block in _blocks(inner) if any(spans(child, line) for child in block)
            )
            block = next(within, [])
        return False


def _blocks(node: ast.AST | None) -> list[list[ast.stmt]]:
    found = (getattr(node, name, None) for name in BLOCKS)
    return [field for field in found if isinstance(field, list)]


def _side(inner: Conditional, line: int) -> tuple[bool, Sequence[ast.AST]]:
    """Return whether a line runs if a test is true, and the branch that the line is in.

    No branch if the line is in neither: at the test, or at the brackets around it.
    """
    body = inner.body if isinstance(inner.body, list) else [inner.body]
    otherwise = inner.orelse if isinstance(inner.orelse, list) else [inner.orelse]
    inside = any(spans(statement, line) for statement in body)
    if (spans(inner.test, line) and span(body[0])[0] != line) or not (inside or otherwise):
        return False, []
    if isinstance(inner, ast.IfExp):
        if not _called(inner.body, inner.orelse):
            return False, []  # the call that runs at this line is outside the expression
        inside = inside and bool(_called(inner.body))
    return inside, body if inside else otherwise


def _caught_in(loop: ast.AST, line: int) -> list[str]:
    below = walk(*ast.iter_child_nodes(loop), into=False)
    found = []
    for handler in (node for node in below if isinstance(node, ast.ExceptHandler)):
        leaves = isinstance(handler.body[-1], (ast.Raise, ast.Return, ast.Break))
        if handler.type is not None and not leaves and not spans(handler, line):
            types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            found += list(filter(None, map(last_name, types)))
    return found


def _called(*nodes: ast.AST) -> set[str]:
    """Return the names that pieces of code call, without leading underscores."""
    below = (node for part in nodes for node in ast.walk(part))
    return {called_name(node).lstrip("_") for node in below if isinstance(node, ast.Call)}


def _is_of_work(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether a rank may run out of a loop's items; a loop that only waits does not count."""
    called = _called(*loop.body)
    only_waits = bool(called) and called <= AWAITS | {"sleep"}
    over = () if isinstance(loop, ast.While) else ast.walk(loop.iter)
    names = {attribute.attr for attribute in over if isinstance(attribute, ast.Attribute)}
    return not (only_waits or names & PARTS_OF_A_MODEL)


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _of_case(match: ast.Match, case: ast.match_case) -> ast.expr:
    """Return the test ``subject == value`` that leads to a case; of a wildcard, not the first."""
    wildcard = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
    asked = match.cases[0].pattern if wildcard else case.pattern
    if not isinstance(asked, ast.MatchValue):
        return match.subject
    test = ast.copy_location(ast.Compare(match.subject, [ast.Eq()], [asked.value]), asked)
    return _negated(test) if wildcard else test


def _before_call(test: ast.BoolOp) -> list[ast.expr]:
    """Return what holds where ``rank == 0 and save()`` calls its last part."""
    *before, last = test.values
    if not _called(last):
        return []
    return before if isinstance(test.op, ast.And) else [_negated(part) for part in before]


def _shown(test: ast.expr) -> str:
    return redact_text(ast.unparse(test))[:LONGEST_TEST]


# Ahead of a line: collectives, and what may end another thread's wait

OF_TORCH = frozenset(
    {
        *("send", "recv", "isend", "irecv", "batch_isend_irecv", "scatter", "gather", "reduce"),
        *("new_group", "init_process_group", "destroy_process_group", "new_subgroups"),
        *("save", "async_save", "load"),
    }
)
"""In torch.distributed and torch.distributed.checkpoint; elsewhere such names mean anything, also
what a program's own class does with them."""
MEETS = re.compile(
    r"_?(all_(reduce|gather|to_all)|reduce_scatter|broadcast|(monitored_)?barrier|gather_object"
    r"|scatter_object|reduce_boolean|wait_for_everyone|backward|save_checkpoint|rank_zero_first"
    r"|main_process_first|guarded_wandb_logger)(_\w+)?"
)
"""Functions in which ranks meet, in any package: torch, Lightning, accelerate, transformers."""
HARMLESS_PACKAGES = frozenset(
    {
        *("numpy", "psutil", "pynvml", "requests", "httpx", "tqdm", "rich", "loguru", "wandb"),
        *("prometheus_client", "tensorboard", "tensorboardX", "yaml", "PIL", "lightning_hangcheck"),
    }
)
"""Installed packages whose calls make no collective; nothing is known of all others."""
KINDS = (
    *(str, bytes, bytearray, int, float, list, tuple, dict, set, collections.deque),
    *(threading.Thread, threading.Event, threading.Condition, threading.Barrier, threading.Timer),
    *(queue.Queue, queue.SimpleQueue, subprocess.Popen, socket.socket, pathlib.Path),
    *(io.TextIOWrapper, io.BufferedRandom, logging.Logger, logging.Handler),
)
HARMLESS_METHODS = frozenset(
    {name for kind in KINDS for name in dir(kind) if not name.startswith("__")}
    - {"run", "handle", "emit", "filter"}
    | {"acquire", "release", "recv_bytes", "send_bytes", "poll", "get_nowait", "put_nowait"}
    | {"cpu_percent", "memory_info", "add_scalar", "inc", "observe", "set_description"}
)
"""Methods of everyday objects: whatever has a method of that name is taken for such an object, but
if a file of the user's that is imported defines one."""
WAKES = frozenset(
    {
        *("release", "set", "put", "put_nowait", "notify", "notify_all", "notifyAll", "abort"),
        *("set_result", "set_exception", "cancel", "task_done", "shutdown", "reset", "close"),
        *("send", "sendall", "sendto", "sendmsg", "sendfile", "send_bytes"),
        *("call_soon_threadsafe", "interrupt_main", "stop", "kill", "terminate", "send_signal"),
        *("get", "get_nowait", "start"),
    }
)
"""Calls that give back a lock, or bring what another thread waits for, such as room in a queue or
the end of a child."""
FILE_LOCKS = frozenset({"flock", "lockf"})
KEEPS = FILE_LOCKS | {"acquire"}
"""Calls that take a lock which is released with a variable of their function, at its end."""
DROPS = frozenset({"pop", "popleft", "popitem", "remove", "discard", "clear"})
"""Methods that let go of an object; the last reference to a locked file releases it."""
CHANGES = frozenset(
    {"append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault"}
    | {"pop", "popleft", "popitem", "remove", "discard", "clear", "write", "writelines"}
)
"""Methods that change an object: it may be a buffer that tells who waits for it, or a pipe, unless
the file shows that it is `PLAIN`."""
PLAIN = frozenset(
    {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict", "open"}
)
PLAIN_DISPLAYS: dict[type, str] = {
    **dict.fromkeys((ast.List, ast.ListComp), "list"),
    **dict.fromkeys((ast.Dict, ast.DictComp), "dict"),
    **dict.fromkeys((ast.Set, ast.SetComp), "set"),
}
"""Whose calls and displays make everyday objects that wake nobody."""
LOCKS = frozenset({"Lock", "RLock"})
CALLS_THAT_WAKE = frozenset(
    {"os.write", "os.writev", "os.eventfd_write", "os.kill", "os.killpg"}
    | {"signal.raise_signal", "signal.pthread_kill", "signal.pidfd_send_signal"}
)
"""The same through descriptors and signal handlers."""
COMMANDS = ("subprocess.", "os.system", "os.popen")
COMMANDS_THAT_WAKE = re.compile(r"\b([ps]?(kill|cancel)(all)?|(re)?start|stop)\b")
"""Words of commands that end or start processes; most others only ask."""
SCRIPTS = re.compile(
    r"\.(sh|py)\b|(^|[\s/])((ba|da|z)?sh|python[\d.]*|make|docker|podman|ssh)(\s|$)"
)
"""Words of commands that may run anything."""
RUN_ANYTHING = frozenset({"next", "exec", "eval"})
"""Functions of Python's that run code which no name shows, as a generator's."""
PROPERTIES = frozenset({"property", "cached_property", "setter", "deleter"})
"""Decorators of code that runs without a visible call."""
TIMERS = frozenset({"Timer", "enter", "enterabs"})
"""Calls that have a function called at a later time: of `threading` and `sched`."""
WORDS_OF_THREADS = frozenset({"is_set", "wait", "is_alive", "len", "empty", "qsize"})
"""Tests of what another thread of the program sets or brings."""
BARRIER = "barrier"
"""Its ``wait`` may end the wait of all others at the barrier; elsewhere ``wait`` only waits."""
MOST_FUNCTIONS = 64  # Followed from one line: more are a program, not a helper's loop


class CallsAhead:
    """Answers for one file: yes, no, or None if something unknown is called."""

    def __init__(
        self,
        tree: ast.Module,
        read: Callable[[str, int], Parsed | None] = lambda _module, _level: None,
    ) -> None:
        self._tree, self._read = tree, read
        self.functions: dict[str, list[Function]] = {}
        self._modules: list[tuple[str, int]] = []
        self._imported: dict[str, str] = {}
        self._properties: set[str] = set()
        self._has_barriers = False
        self._plain, self._locks = _names_of_only(PLAIN, tree), _names_of_only(LOCKS, tree)
        for node in ast.walk(tree):
            if BARRIER.capitalize() in (getattr(node, "id", ""), getattr(node, "attr", "")):
                self._has_barriers = True
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.functions.setdefault(node.name, []).append(node)
                if any(last_name(decorator) in PROPERTIES for decorator in node.decorator_list):
                    self._properties.add(node.name)
            elif isinstance(node, ast.Import):
                self._modules += [(alias.name, 0) for alias in node.names]
                for alias in node.names:
                    known = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._imported[alias.asname or known] = known
            elif isinstance(node, ast.ImportFrom):
                module = "" if node.level else node.module or ""
                parts = [node.module] if node.module else []
                inside = (".".join((*parts, alias.name)) for alias in node.names)
                self._modules += [(name, node.level) for name in (*parts, *inside)]
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = f"{module}.{alias.name}"

    @cached_property
    def _named_elsewhere(self) -> frozenset[str]:
        """Names of the functions in those of the user's files that this one imports."""
        found = (self._read(*module) for module in self._modules)
        return frozenset(
            name for other in found if other is not None for name in other.calls.functions
        )

    @cached_property
    def timed(self) -> Answer:
        """Whether what is handed to a timer of Python's calls collectives."""
        calls = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call) and called_name(node) in TIMERS
        ]
        handed = [
            function
            for call in calls
            for given in (*call.args, *(word.value for word in call.keywords))
            for node in ast.walk(given)
            if isinstance(node, (ast.Name, ast.Attribute))
            for function in self.functions.get(last_name(node), ())
        ]
        nodes = chain(*map(ast.walk, handed or calls))
        return self._answer(nodes, _meets, HARMLESS_METHODS - OF_TORCH) if calls else False

    def collectives(self, line: int) -> Answer:
        """Return whether the function around a line calls a collective from that line on.

        A loop begins again, so all of a loop around the line lies ahead.
        """
        return self._answer(self._from(line), _meets, HARMLESS_METHODS - OF_TORCH)

    def behind_loop(self, line: int) -> tuple[Answer, Answer]:
        """Return whether the innermost loop around a line ends by itself, and the same of then.

        Both None outside of loops. A test of a flag or queue waits for another thread's word. All
        that a loop calls was called in each pass, but for a branch that leaves it.
        """
        function = self._function(line)
        loop = next(
            (node for node in [*around(function, line)][::-1] if isinstance(node, LOOPS)), None
        )
        if loop is None:
            return None, None
        inside = {id(node): node for node in ast.walk(loop)}
        leaving = [
            node
            for node in inside.values()
            if isinstance(node, ast.If)
            and isinstance(node.body[-1], (ast.Break, ast.Return, ast.Raise))
        ]
        tests = [loop.test] if isinstance(loop, ast.While) else []
        asked = _called(*tests, *(node.test for node in leaving)) - WORDS_OF_THREADS
        then = [node for node in self._from(line) if id(node) not in inside]
        then += [below for node in leaving for each in node.body for below in ast.walk(each)]
        ends = isinstance(loop, LOOPS_OVER_SOME) or bool(asked)
        return ends, self._answer(then, _meets, HARMLESS_METHODS - OF_TORCH)

    def waking(self, line: int, *, lock_wanted: bool = True) -> Answer:
        """Return whether code from a line on may end what another thread waits for in memory.

        It may give back a lock, also by leaving a ``with``, or send any kind of notification. If no
        lock is wanted, leaving the ``with`` of one ends no wait.
        """

        def wakes(path: str, call: ast.Call) -> Answer:
            owner, _, name = path.rpartition(".")
            at_barrier = (self._has_barriers and "." in path) or BARRIER in owner.lower()
            given = {*map(last_name, (*call.args, *(word.value for word in call.keywords)))}
            fed = "stdin" in given or (name in ("write", "flush") and owner.endswith("stdin"))
            known = name in WAKES or path in CALLS_THAT_WAKE
            if path.startswith(COMMANDS):
                parts = (getattr(part, "value", None) for part in ast.walk(call))
                texts = [part for part in parts if isinstance(part, str)]
                known = any(map(COMMANDS_THAT_WAKE.search, texts))
                if not known and (not texts or any(map(SCRIPTS.search, texts))):
                    return None
            if known or fed or (name == "wait" and at_barrier):
                return True
            streams = {last_name(word.value) for word in call.keywords if word.arg == "file"}
            elsewhere = path == "print" and not streams <= {"stdout", "stderr", *self._plain}
            return None if elsewhere or path in RUN_ANYTHING else False

        function = self._function(line)
        left = (node for node in around(function, line) if isinstance(node, MANAGED))
        managers = [last_name(item.context_expr) for node in left for item in node.items]
        if managers and (lock_wanted or not self._locks.issuperset(managers)):
            return True
        ahead = self._from(line)
        if not KEEPS.isdisjoint(_called(function)) or (
            self._locks_files and any(map(_drops, ahead))
        ):
            return True
        return self._answer(ahead, wakes, HARMLESS_METHODS - WAKES - CHANGES)

    @cached_property
    def _locks_files(self) -> bool:
        return not FILE_LOCKS.isdisjoint(_called(self._tree))

    def _function(self, line: int) -> ast.AST:
        functions = (node for node in around(self._tree, line) if isinstance(node, FUNCTIONS))
        return [self._tree, *functions][-1]

    def _from(self, line: int) -> list[ast.AST]:
        """Return the code of a function from a line on, or from the loops around that line on."""
        function = self._function(line)
        loops = [node for node in around(function, line) if isinstance(node, LOOPS)]
        first = loops[0].lineno if loops else line
        return [node for node in ast.walk(function) if span(node)[1] >= first]

    def _answer(
        self,
        nodes: Iterable[ast.AST],
        is_it: Callable[[str, ast.Call], Answer],
        harmless: frozenset[str],
    ) -> Answer:
        """Ask ``is_it`` of each call, by its imported path; ``harmless`` methods do not count."""
        met: set[int] = set()

        def of_calls(nodes: Iterable[ast.AST]) -> Iterator[Answer]:
            for call in nodes:
                if isinstance(call, ast.Attribute) and call.attr in self._properties:
                    yield from of_own(call.attr)
                if not isinstance(call, ast.Call):
                    continue
                names = _chain(call.func)
                root, name = names[0], names[-1]
                path = ".".join((self._imported.get(root, root), *names[1:]))
                found = is_it(path, call)
                if found is not False:
                    yield found
                elif root in self._imported:
                    package = path.partition(".")[0]
                    known = {"torch"} | HARMLESS_PACKAGES | sys.stdlib_module_names
                    yield False if package in known else None
                elif name in self.functions:
                    yield from of_own(name)
                elif len(names) == 1:
                    yield False if hasattr(builtins, name) else None
                elif (name in CHANGES and names[-2] in self._plain) or (
                    name in harmless and name not in self._named_elsewhere
                ):
                    yield False
                else:
                    yield None
                # functions of this file that are passed on
                for given in (*call.args, *(keyword.value for keyword in call.keywords)):
                    yield from of_own(last_name(given))

        def of_own(name: str) -> Iterator[Answer]:
            """Follow all functions of this file with a name; a class may run all its methods."""
            for function in self.functions.get(name, ()):
                if id(function) not in met:
                    met.add(id(function))
                    if len(met) > MOST_FUNCTIONS:
                        yield None
                    else:
                        yield from of_calls(ast.walk(function))

        found = set(of_calls(nodes))
        return True if True in found else None if None in found else False


def _drops(node: ast.AST) -> bool:
    """Whether code lets go of an object: by ``del``, by None in its place, or out of a table."""
    if isinstance(node, ast.Assign):
        kept = any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
        return kept and getattr(node.value, "value", node) is None
    return isinstance(node, ast.Delete) or (
        isinstance(node, ast.Call) and called_name(node) in DROPS
    )


def _meets(path: str, _: ast.Call) -> bool:
    name = path.rpartition(".")[2]
    of_torch = path.startswith("torch.distributed.") and name in OF_TORCH
    return of_torch or MEETS.fullmatch(name) is not None


def _names_of_only(makers: frozenset[str], tree: ast.Module) -> frozenset[str]:
    """Return the names of variables and attributes that are only ever bound to what some make."""
    found, others = set[str](), set[str]()

    def bind(target: ast.AST | None, value: ast.AST | None) -> None:
        made = value is not None and (PLAIN_DISPLAYS.get(type(value), called_name(value)) in makers)
        for node in ast.walk(target) if target is not None else ():
            if isinstance(getattr(node, "ctx", None), ast.Store) and isinstance(
                node, (ast.Name, ast.Attribute)
            ):
                (found if made and node is target else others).add(last_name(node))

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                bind(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            bind(node.target, node.value)
        elif isinstance(node, ast.withitem):
            bind(node.optional_vars, node.context_expr)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            bind(node.target, None)
        elif isinstance(node, ast.arg):
            others.add(node.arg)
    return frozenset(found - others)


def _chain(node: ast.expr) -> list[str]:
    """Return the names of ``a.b.c``; the first is empty if it is no name but a call or the like."""
    if isinstance(node, ast.Attribute):
        return [*_chain(node.value), node.attr]
    return [last_name(node)]
