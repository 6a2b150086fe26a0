"""Reads the source around the lines on which ranks stand: loops, and tests of the rank."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.files.owned_file import read_regular
from lightning_hangcheck.model.case import CodeNote
from lightning_hangcheck.model.code_owner import is_users
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.evidence import Frame

MOST_LINES = 256
LARGEST_FILE = 512 * 1024
LONGEST_TEST = 120
FILES_KEPT = 64
ASKS_RANK = re.compile(
    r"(^|_)rank($|_)|^is_(global|local|rank|world|main|master)_?(zero|process|local_process)"
    r"|^is_(main|master|local_main|world_process_zero)|^(local_)?process_index$|^get_node_rank$",
    re.IGNORECASE,
)
"""Names that only rank conditions use: rank, get_rank(), global_rank, is_global_zero (Lightning),
is_main_process (accelerate), is_world_process_zero (transformers)."""


def code_notes(
    frames: Iterable[Frame], unchanged_since_s: float, time_limit_s: float
) -> tuple[CodeNote, ...]:
    """Read what stands around lines of the user's code.

    A file that cannot be read, is no Python, or was changed after the job began gives no note.

    Args:
        frames: Any; those that are not the user's are left out.
        unchanged_since_s: Clock time, seconds since 1970; a file that is newer is not what runs.
        time_limit_s: Seconds for all: a dead file system must not hold the look up.
    """
    lines = {(frame.file, frame.line) for frame in frames if is_users(frame.file)}
    wanted = sorted(lines)[:MOST_LINES]
    if not wanted:
        return ()
    try:
        return within(time_limit_s, lambda: tuple(_notes(wanted, unchanged_since_s)))
    except NoAnswer:
        return ()


def _notes(lines: Sequence[tuple[str, int]], unchanged_since_s: float) -> Iterator[CodeNote]:
    for file, line in lines:
        try:
            facts = Path(file).stat()
            if facts.st_mtime > unchanged_since_s or facts.st_size > LARGEST_FILE:
                continue
            tree = _parsed(file, facts.st_mtime_ns)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        yield note_of(tree, file, line)


@lru_cache(maxsize=FILES_KEPT)
def _parsed(file: str, _changed_ns: int) -> ast.Module:
    return ast.parse(read_regular(Path(file), LARGEST_FILE))


def note_of(tree: ast.Module, file: str, line: int) -> CodeNote:
    """Describe one line of a parsed file."""
    loops: list[tuple[int, int]] = []
    test: ast.expr | None = None
    scope: ast.AST = tree
    while True:
        inner = _child_at(scope, line)
        if inner is None:
            break
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            loops, test = [], None
        elif isinstance(inner, (ast.For, ast.AsyncFor, ast.While)):
            loops.append((inner.lineno, inner.end_lineno or inner.lineno))
        test = _test_before(scope, inner) or test
        if isinstance(inner, (ast.If, ast.IfExp)) and not _spans(inner.test, line):
            test = inner.test if _asks_rank(inner.test) else test
        scope = inner
    return CodeNote(
        file=file,
        line=line,
        condition=_shown(test) if test is not None else "",
        condition_line=test.lineno if test is not None else 0,
        loops=tuple(loops),
    )


def _child_at(node: ast.AST, line: int) -> ast.AST | None:
    """Return the child that the line is in; the last one where several are on that line."""
    found = [child for child in ast.iter_child_nodes(node) if _spans(child, line)]
    return found[-1] if found else None


def _spans(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def _test_before(scope: ast.AST, inner: ast.AST) -> ast.expr | None:
    """Return a test of the rank that leaves the block before a statement: ``if rank: return``."""
    for block in (getattr(scope, name, None) for name in ("body", "orelse", "finalbody")):
        if not isinstance(block, list) or inner not in block:
            continue
        for statement in block[: block.index(inner)]:
            if isinstance(statement, ast.If) and _asks_rank(statement.test) and _leaves(statement):
                return statement.test
    return None


def _leaves(statement: ast.If) -> bool:
    return isinstance(statement.body[-1], (ast.Return, ast.Continue, ast.Break, ast.Raise))


def _asks_rank(test: ast.expr) -> bool:
    names = (
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(test)
        if isinstance(node, (ast.Name, ast.Attribute))
    )
    return any(ASKS_RANK.search(name) for name in names)


def _shown(test: ast.expr) -> str:
    return redact_text(ast.unparse(test))[:LONGEST_TEST]
