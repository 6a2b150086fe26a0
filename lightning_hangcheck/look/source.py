"""Reads source code: each file once for all threads, and what stands around the lines of ranks.

A file is read as the process that runs it knows it, in its container, and only where it has not
changed since that process began.
"""

from __future__ import annotations

import ast
import re
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.files.safe import read_regular
from lightning_hangcheck.look.calls_ahead import CallsAhead
from lightning_hangcheck.look.proc import began_s, root_of
from lightning_hangcheck.look.rank_tests import ONE_RANK_ONLY, RankTests
from lightning_hangcheck.look.syntax import FUNCTIONS, LOOPS, called_name
from lightning_hangcheck.model.case import CodeNote
from lightning_hangcheck.model.code_owner import is_users, owner_of
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.evidence import Frame

READ_LIMIT_S = 0.2
RETRY_AFTER_S = 30.0
"""A folder whose storage did not answer is left alone for so long."""
LARGEST_FILE = 512 * 1024
TEXT_KEPT = 4 * 1024 * 1024
"""Bytes of all files together."""
TREES_KEPT = 256 * 1024
"""The same of those that are kept parsed, which takes some 60 times as much: 15 MB."""
TAKES_LOCK = re.compile(rb"^\s*with\s[^()#]*:[^()#]*(#.*)?$|\.acquire\(")
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError)


class _File:
    """What was read of a file, once; its notes are by line.

    Attributes:
        text: None where it cannot be read, or is too large.
        changed_s: When it was changed before it was read: clock time, seconds since 1970.
    """

    def __init__(self, text: bytes | None, changed_s: float) -> None:
        self.text = text
        self.changed_s = changed_s
        self.read_s = time.time()
        self.notes: dict[int, CodeNote] = {}

    @cached_property
    def lines(self) -> list[bytes]:
        return (self.text or b"").splitlines()


class Parsed:
    """A file's tree, what it calls the rank, what it calls at all, and who makes a step."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.ranks = RankTests(tree)
        self.calls = CallsAhead(tree)
        self.run_backward = BACKWARD | {
            one.name
            for one in ast.walk(tree)
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and _calls(one, BACKWARD)
        }

    def note(self, file: str, line: int) -> CodeNote:
        """Describe one line."""
        found = _Surroundings(self.ranks, line)
        scope: ast.AST = self.tree
        while True:  # into the child that the line is in; the last one, of several on that line
            below = reversed([*ast.iter_child_nodes(scope)])
            inner = next((one for one in below if _spans(one, line)), None)
            if inner is None:
                break
            found.enter(scope, inner)
            scope = inner
        return CodeNote(
            file=file,
            line=line,
            condition=found.condition,
            condition_line=found.condition_line,
            condition_of_most=found.condition_of_most,
            skipped_under=found.skipped_under,
            loops=tuple(_span(loop) for loop in found.loops if _is_of_work(loop)),
            branches=tuple(span for span, _ in found.branches),
            branch_tests=tuple(test for _, test in found.branches),
            awaits=found.awaits or any(_calls(loop, ENDS) for loop in found.loops),
            after_backward=found.comes_after(self.run_backward),
            collectives_ahead=self.calls.collectives(line) if is_users(file) else None,
        )


_files: OrderedDict[str, _File] = OrderedDict()
_trees: OrderedDict[str, tuple[_File, Parsed]] = OrderedDict()
_silent_folders: dict[str, float] = {}
_keeping = threading.RLock()
"""Held while a file is parsed, and never while one is read."""


class Sources(NamedTuple):
    """The source files of a process, below its own ``root`` if it has one.

    A file that is newer (clock time, seconds since 1970) is not what runs.
    """

    root: str
    unchanged_since_s: float

    @classmethod
    def of(cls, pid: int) -> Sources:
        """Return those of a process, as long as it lives."""
        return cls(root_of(pid), began_s(pid))

    def takes_lock(self, file: str, line: int) -> bool:
        """Whether the line is a ``with`` statement that calls nothing, or calls ``acquire``.

        A thread whose innermost Python frame stands there, and which the kernel shows in a futex
        without a time limit, waits for a lock: whatever else such a line may call has a frame.
        """
        found = self._file(file)
        lines = found.lines if found is not None else []
        return 0 < line <= len(lines) and TAKES_LOCK.search(lines[line - 1]) is not None

    def parsed(self, file: str) -> Parsed | None:
        """Parse a file; None where it cannot be read, is no Python, or not what runs."""
        found = self._file(file)
        return _parsed(self.root + file, found) if found is not None else None

    def note(self, file: str, line: int) -> CodeNote | None:
        """Tell what stands around a line."""
        found = self._file(file)
        if found is None:
            return None
        if line not in found.notes:
            parsed = _parsed(self.root + file, found)
            if parsed is None:
                return None
            found.notes[line] = parsed.note(file, line)
        return found.notes[line]

    def _file(self, file: str) -> _File | None:
        """Read a file, or what was kept of it: whoever began before that runs what was read.

        Returns:
            None where it is not to be had, also because its storage does not answer.
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
                found = within(READ_LIMIT_S, lambda: _read(Path(path)))
            except NoAnswer:
                _silent_folders[folder] = time.monotonic() + RETRY_AFTER_S
                return None
            with _keeping:
                _files[path] = found
                kept = sum(len(one.text or b"") for one in _files.values())
                while kept > TEXT_KEPT and len(_files) > 1:
                    kept -= len(_files.popitem(last=False)[1].text or b"")
        changed = found.changed_s > self.unchanged_since_s
        return None if changed or found.text is None else found


def _read(path: Path) -> _File:
    try:
        facts = path.stat()
        small = facts.st_size <= LARGEST_FILE
        return _File(read_regular(path, LARGEST_FILE) if small else None, facts.st_mtime)
    except OSError:
        return _File(None, 0.0)


def _parsed(path: str, file: _File) -> Parsed | None:
    """Parse a file, or find it parsed: sixteen threads that ask at once make one tree."""
    with _keeping:
        of_file, found = _trees.pop(path, (None, None))
        if found is None or of_file is not file:
            try:
                found = Parsed(ast.parse(file.text or b""))
            except UNREADABLE:
                return None
        _trees[path] = file, found
        kept = sum(len(one.text or b"") for one, _ in _trees.values())
        while kept > TREES_KEPT and len(_trees) > 1:
            kept -= len(_trees.popitem(last=False)[1][0].text or b"")
        return found


# Around a line: loops, and tests of the rank

MOST_LINES = 256
LONGEST_TEST = 120
ENDS = frozenset({"is_completed", "is_success", "query", "done", "is_done", "completed", "test"})
"""Calls that ask whether something has ended: torch's Work, futures, events, MPI's requests."""
AWAITS = ENDS | {"wait", "wait_all", "synchronize", "result", "value"}
"""Calls that wait for the end of what was started before."""
BACKWARD = frozenset({"backward"})
PARTS_OF_A_MODEL = frozenset({"parameters", "named_parameters", "buffers", "named_buffers"}) | {
    *("modules", "named_modules", "children", "named_children", "param_groups"),
}
"""Of which all ranks have as many, so that none leaves a loop over them before the others."""
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
ALWAYS_RUN = (ast.Expr, ast.Assign, ast.AnnAssign, ast.With, ast.AsyncWith)
LOOPS_OVER_SOME = (ast.For, ast.AsyncFor)
"""Within a loop over epochs the one over batches has some."""


def code_notes(
    frames: Sequence[Frame], unchanged_since_s: float, time_limit_s: float, root: str = ""
) -> tuple[CodeNote, ...]:
    """Read what stands around lines of code, torch's and Python's own left out, in so many seconds.

    A file that cannot be read, is no Python, or was changed after the job began gives no note. The
    user's own files are read first. ``root`` and ``unchanged_since_s`` as in `Sources`.
    """
    deadline = time.monotonic() + time_limit_s
    sources = Sources(root, unchanged_since_s)
    owners = {file: owner_of(file) for file in {frame.file for frame in frames}}
    # a framework tests the rank, too
    read = {
        file
        for file, owner in owners.items()
        if owner.kind == "user" or (owner.kind == "framework" and owner.package != "torch")
    }
    lines = {(frame.file, frame.line) for frame in frames if frame.file in read}
    wanted = sorted(lines, key=lambda line: (not is_users(line[0]), line))[:MOST_LINES]
    found: list[CodeNote] = []
    for file, line in wanted:
        if time.monotonic() > deadline:
            break
        with suppress(*UNREADABLE):
            note = sources.note(file, line)
            found += [note] if note is not None else []
    return tuple(found)


class _Surroundings:
    """What stands around a line, gathered from the outside in, for its innermost function."""

    def __init__(self, ranks: RankTests, line: int) -> None:
        self._ranks, self._line = ranks, line
        self._forget()

    def _forget(self) -> None:
        self.condition, self.condition_line, self.condition_of_most = "", 0, False
        self.skipped_under = ""
        self.loops: list[ast.For | ast.AsyncFor | ast.While] = []
        self.branches: list[tuple[tuple[int, int], str]] = []
        self.awaits = False
        self._function: list[ast.stmt] = []

    def enter(self, scope: ast.AST, inner: ast.AST) -> None:
        """Go one node further in."""
        if isinstance(inner, (*FUNCTIONS, ast.ClassDef)):
            self._forget()
            for decorator in getattr(inner, "decorator_list", ()):
                text = _shown(decorator)
                if ONE_RANK_ONLY.search(text) and not _spans(decorator, self._line):
                    self._name_condition(f"@{text}", decorator.lineno)
            self._function = inner.body if not isinstance(inner, ast.Lambda) else []
        elif isinstance(inner, LOOPS):
            self.loops.append(inner)
        self._after_exits(scope, inner)
        if isinstance(inner, (ast.If, ast.IfExp, ast.While)):
            self._under(inner)
        elif isinstance(inner, ast.ExceptHandler):
            caught = f" {_shown(inner.type)}" if inner.type is not None else ""
            self.branches.append((_span(inner), f"except{caught}"))
        elif isinstance(inner, ast.Call):
            self.awaits = self.awaits or _called(inner) in AWAITS

    def comes_after(self, names: frozenset[str]) -> bool:
        """Whether one of these is called before, in each pass of a loop or by a step's function."""
        line, loops = self._line, [loop.body for loop in self.loops]
        return _runs_before(self._function, line, names, ALWAYS_RUN) or any(
            _runs_before(body, line, names, ALWAYS_RUN + LOOPS_OVER_SOME) for body in loops
        )

    def _under(self, inner: ast.If | ast.IfExp | ast.While) -> None:
        body = inner.body if isinstance(inner.body, list) else [inner.body]
        if _spans(inner.test, self._line) and body[0].lineno != self._line:
            return
        inside = any(_spans(one, self._line) for one in body)
        if not inside and not inner.orelse:
            return  # at the brackets around the test
        if isinstance(inner, ast.IfExp):
            if not (_calls(inner.body) or _calls(inner.orelse)):
                return  # who stands at this line stands in a call beside it
            inside = inside and _calls(inner.body)
        if not isinstance(inner, ast.While):
            block = body if inside else inner.orelse
            block = block if isinstance(block, list) else [block]
            span = (block[0].lineno, block[-1].end_lineno or block[-1].lineno)
            word = "if" if inside else "else of if"
            self.branches.append((span, f"{word} {_shown(inner.test)}"))
        if self._ranks.asks(inner.test) and (inside or not self._ranks.of_one(inner.test)):
            of_most = inside and self._ranks.of_one(inner.test) is False
            self._name_condition(_shown(inner.test), inner.test.lineno, of_most=of_most)

    def _after_exits(self, scope: ast.AST, inner: ast.AST) -> None:
        """Note tests that leave the block before a statement: ``if rank: return``."""
        for block in (getattr(scope, name, None) for name in ("body", "orelse", "finalbody")):
            if not isinstance(block, list) or inner not in block:
                continue
            before = block[: block.index(inner)]
            exits = [
                one
                for one in before
                if isinstance(one, ast.If) and isinstance(one.body[-1], LEAVES)
            ]
            for statement in exits:
                last = block[-1].end_lineno or block[-1].lineno
                span = ((statement.end_lineno or statement.lineno) + 1, last)
                leaves = ast.unparse(statement.body[-1]).partition(" ")[0]
                self.branches.append((span, f"if {_shown(statement.test)}: {leaves}"))
            asking = [one for one in exits if self._ranks.asks(one.test)]
            for statement in asking[:1]:
                text = _shown(statement.test)
                if self._ranks.of_one(statement.test):
                    self.skipped_under = text
                else:
                    self._name_condition(text, statement.test.lineno)

    def _name_condition(self, text: str, line: int, *, of_most: bool = False) -> None:
        self.condition, self.condition_line, self.condition_of_most = text, line, of_most


def _spans(node: ast.AST, line: int) -> bool:
    first, last = _span(node)
    return first <= line <= last


def _span(node: ast.AST) -> tuple[int, int]:
    """Return first and last line; decorators belong to what they decorate."""
    return getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 0


def _calls(node: ast.AST, names: frozenset[str] | None = None) -> bool:
    """Whether anything is called in a piece of code; only what has one of these names, if given."""
    calls = (_called(one) for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(names is None or name in names for name in calls)


def _is_of_work(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether a rank may run out of what a loop goes over; one that only waits is none such."""
    called = {
        _called(one)
        for statement in loop.body
        for one in ast.walk(statement)
        if isinstance(one, ast.Call)
    }
    only_waits = bool(called) and called <= AWAITS | {"sleep"}
    over = () if isinstance(loop, ast.While) else ast.walk(loop.iter)
    names = {one.attr for one in over if isinstance(one, ast.Attribute)}
    return not (only_waits or names & PARTS_OF_A_MODEL)


def _called(call: ast.Call) -> str:
    return called_name(call).lstrip("_")


def _runs_before(
    body: list[ast.stmt], line: int, names: frozenset[str], always: tuple[type[ast.stmt], ...]
) -> bool:
    """Whether a line of a block is only reached after a call of one of these names.

    Statements of the kinds ``always`` run what is in them, whatever is the case.
    """
    block = body
    while block:
        before = [one for one in block if (one.end_lineno or one.lineno) < line]
        if any(isinstance(one, always) and _calls(one, names) for one in before):
            return True
        around = next((one for one in block if _spans(one, line)), None)
        parts: list[list[ast.stmt]] = [
            getattr(around, name, []) for name in ("body", "orelse", "finalbody")
        ]
        block = next((one for one in parts if any(_spans(child, line) for child in one)), [])
    return False


def _shown(test: ast.expr) -> str:
    return redact_text(ast.unparse(test))[:LONGEST_TEST]
