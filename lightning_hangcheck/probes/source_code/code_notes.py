"""Reads the source around the lines on which ranks stand: loops, and tests of the rank."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from lightning_hangcheck.files.owned_file import read_regular
from lightning_hangcheck.model.case import CodeNote
from lightning_hangcheck.model.naming.code_owner import is_users, owner_of
from lightning_hangcheck.probes.source_code.calls_ahead import CallsAhead
from lightning_hangcheck.probes.source_code.rank_tests import RankTests
from lightning_hangcheck.probes.source_code.syntax import FUNCTIONS, LOOPS, called_name
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.evidence import Frame

MOST_LINES = 256
LARGEST_FILE = 512 * 1024
LONGEST_TEST = 120
FILES_KEPT = 2
"""Parsed: a framework's largest takes some 30 MB, and lines come file by file."""
NOTES_KEPT = 4_096
ENDS = frozenset({"is_completed", "is_success", "query", "done", "is_done", "completed", "test"})
"""Calls that ask whether something has ended: torch's Work, futures, events, MPI's requests."""
AWAITS = ENDS | {"wait", "wait_all", "synchronize", "result", "value"}
"""Calls that wait for the end of what was started before."""
BACKWARD = frozenset({"backward"})
PARTS_OF_A_MODEL = frozenset({"parameters", "named_parameters", "buffers", "named_buffers"}) | {
    *("modules", "named_modules", "children", "named_children", "param_groups"),
}
"""Of which all ranks have as many, so that none leaves a loop over them before the others."""
ALWAYS_RUN = (ast.Expr, ast.Assign, ast.AnnAssign, ast.With, ast.AsyncWith)
LOOPS_OVER_SOME = (ast.For, ast.AsyncFor)
"""Within a loop over epochs the one over batches has some."""
ONE_RANK_ONLY = re.compile(r"rank_?(zero|0)|main_process|is_main|master_only|on_process")
"""In decorators whose function runs on one rank: Lightning's and accelerate's, and their like."""
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError)


def code_notes(
    frames: Iterable[Frame], unchanged_since_s: float, time_limit_s: float
) -> tuple[CodeNote, ...]:
    """Read what stands around lines of code, torch's and Python's own left out.

    A file that cannot be read, is no Python, or was changed after the job began gives no note.

    Args:
        frames: Any.
        unchanged_since_s: Clock time, seconds since 1970; a file that is newer is not what runs.
        time_limit_s: Seconds for all: a dead file system must not hold the look up.

    Returns:
        What was read in time, the user's own files first.
    """
    lines = {(frame.file, frame.line) for frame in frames if _is_read(frame.file)}
    wanted = sorted(lines, key=lambda line: (not is_users(line[0]), line))[:MOST_LINES]
    found: list[CodeNote] = []
    if wanted:
        with suppress(NoAnswer):
            within(time_limit_s, lambda: found.extend(_notes(wanted, unchanged_since_s)))
    return tuple(found)


def _is_read(file: str) -> bool:
    """Whether a file is the user's or a framework's: these test the rank, too."""
    owner = owner_of(file)
    return owner.kind == "user" or (owner.kind == "framework" and owner.package != "torch")


def _notes(lines: Sequence[tuple[str, int]], unchanged_since_s: float) -> Iterator[CodeNote]:
    for file, line in lines:
        try:
            changed_ns = _unchanged(file, unchanged_since_s)
            note = _note_at(file, changed_ns, line) if changed_ns is not None else None
        except UNREADABLE:
            continue
        if note is not None:
            yield note


def source_tree(file: str, unchanged_since_s: float) -> ast.Module | None:
    """Read and parse a file; asks its file system, which may not answer.

    Args:
        file: Of a frame.
        unchanged_since_s: As of `code_notes`.
    """
    source = _source(file, unchanged_since_s)
    return source.tree if source is not None else None


def calls_in(file: str, unchanged_since_s: float) -> CallsAhead | None:
    """Read a file for what its threads call; as `source_tree`."""
    source = _source(file, unchanged_since_s)
    return source.calls if source is not None else None


def _source(file: str, unchanged_since_s: float) -> _File | None:
    try:
        changed_ns = _unchanged(file, unchanged_since_s)
        return _parsed(file, changed_ns) if changed_ns is not None else None
    except UNREADABLE:
        return None


def _unchanged(file: str, since_s: float) -> int | None:
    """When a file was changed; None where that was since then, or it is too large to be read."""
    facts = Path(file).stat()
    newer = facts.st_mtime > since_s or facts.st_size > LARGEST_FILE
    return None if newer else facts.st_mtime_ns


class _File:
    """A parsed file, what it calls the rank, what it calls at all, and who makes a step."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.ranks = RankTests(tree)
        self.calls = CallsAhead(tree)
        self.run_backward = BACKWARD | {
            one.name
            for one in ast.walk(tree)
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and _calls(one, BACKWARD)
        }


@lru_cache(maxsize=FILES_KEPT)
def _parsed(file: str, _changed_ns: int) -> _File:
    return _File(ast.parse(read_regular(Path(file), LARGEST_FILE)))


@lru_cache(maxsize=NOTES_KEPT)
def _note_at(file: str, changed_ns: int, line: int) -> CodeNote:
    return _note(_parsed(file, changed_ns), file, line)


def note_of(tree: ast.Module, file: str, line: int) -> CodeNote:
    """Describe one line of a parsed file."""
    return _note(_File(tree), file, line)


def _note(source: _File, file: str, line: int) -> CodeNote:
    found = _Surroundings(source.ranks, line)
    scope: ast.AST = source.tree
    while (inner := _child_at(scope, line)) is not None:
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
        after_backward=found.comes_after(source.run_backward),
        collectives_ahead=source.calls.collectives(line) if is_users(file) else None,
    )


class _Surroundings:
    """What stands around a line, gathered from the outside in, for its innermost function."""

    def __init__(self, ranks: RankTests, line: int) -> None:
        self._ranks, self._line = ranks, line
        self._forget()

    def _forget(self) -> None:
        self._name_condition("", 0)
        self.skipped_under = ""
        self.loops: list[ast.For | ast.AsyncFor | ast.While] = []
        self.branches: list[tuple[tuple[int, int], str]] = []
        self.awaits = False
        self._function: list[ast.stmt] = []

    def enter(self, scope: ast.AST, inner: ast.AST) -> None:
        """Go one node further in."""
        if isinstance(inner, (*FUNCTIONS, ast.ClassDef)):
            self._forget()
            self._decorated(inner)
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

    def _decorated(self, inner: ast.AST) -> None:
        for decorator in getattr(inner, "decorator_list", ()):
            text = _shown(decorator)
            if ONE_RANK_ONLY.search(text) and not _spans(decorator, self._line):
                self._name_condition(f"@{text}", decorator.lineno)

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
            exits = [one for one in block[: block.index(inner)] if _leaves(one)]
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


def _child_at(node: ast.AST, line: int) -> ast.AST | None:
    """Return the child that the line is in; the last one where several are on that line."""
    found = [child for child in ast.iter_child_nodes(node) if _spans(child, line)]
    return found[-1] if found else None


def _spans(node: ast.AST, line: int) -> bool:
    first, last = _span(node)
    return first <= line <= last


def _span(node: ast.AST) -> tuple[int, int]:
    """Return first and last line; decorators belong to what they decorate."""
    return getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 0


def _leaves(statement: ast.stmt) -> TypeGuard[ast.If]:
    exits = (ast.Return, ast.Continue, ast.Break, ast.Raise)
    return isinstance(statement, ast.If) and isinstance(statement.body[-1], exits)


def _calls(node: ast.AST, names: frozenset[str] | None = None) -> bool:
    """Whether anything is called in a piece of code; only what has one of these names, if given."""
    calls = (_called(one) for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(names is None or name in names for name in calls)


def _only_waits(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether all that a loop does is to wait: that is no work to run out of."""
    inside = [one for statement in loop.body for one in ast.walk(statement)]
    called = {_called(one) for one in inside if isinstance(one, ast.Call)}
    return bool(called) and called <= AWAITS | {"sleep"}


def _is_of_work(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether a rank may run out of what a loop goes over."""
    over = () if isinstance(loop, ast.While) else ast.walk(loop.iter)
    names = {one.attr for one in over if isinstance(one, ast.Attribute)}
    return not (_only_waits(loop) or names & PARTS_OF_A_MODEL)


def _called(call: ast.Call) -> str:
    return called_name(call).lstrip("_")


def _runs_before(
    body: list[ast.stmt], line: int, names: frozenset[str], always: tuple[type[ast.stmt], ...]
) -> bool:
    """Whether one comes to a line of a block only after a call of one of these names.

    Args:
        body: The block.
        line: In it.
        names: Of what is called.
        always: Statements that run what is in them, whatever is the case.
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
