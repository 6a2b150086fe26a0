"""What a watched call says: a section around it, and a checkpoint that its return proves.

The first calls of a kind are said, all are on the page. Of calls within calls the outermost is
shown (``AutoModel.from_pretrained`` calls that of the model's class), and none where the script has
opened a section of that name itself. Checkpoints are those of the reference script, each once a
process; a script that names this package says its own, and then none of these.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightning_hangcheck.hooks.zero_code.wrapping import Around, Call


SPOKEN = 3
"""Calls of a kind that are said on the console: what comes once a step must not fill it."""


class _Inside(threading.local):
    """The kinds of calls that this thread is in."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()


_inside = _Inside()
_calls: Counter[str] = Counter()


def in_section(
    kind: str,
    name: str | Callable[[Call], str] = "",
    then: Callable[[Call], object] | None = None,
) -> Around:
    """Make a watcher that opens a section around the outermost call of its kind.

    Args:
        kind: Of call; calls of one kind within each other are one.
        name: Of the section, or what names it; the kind where it is empty.
        then: What to do when such a call has returned.
    """

    @contextmanager
    def visit(call: Call) -> Iterator[None]:
        if is_inside(kind):
            yield
            return
        title = name(call) if callable(name) else name or kind
        with inside(kind), _section(kind, title):
            yield
        if then is not None:
            then(call)

    return visit


@contextmanager
def inside(kind: str) -> Iterator[None]:
    """Have calls of this kind, by this thread, be calls within the one that goes on."""
    _inside.kinds.add(kind)
    try:
        yield
    finally:
        _inside.kinds.discard(kind)


def afterwards(then: Callable[[Call], object]) -> Around:
    """Make a watcher that only acts when a call has returned."""

    @contextmanager
    def visit(call: Call) -> Iterator[None]:
        yield
        then(call)

    return visit


def is_inside(kind: str) -> bool:
    """Whether this thread is in a call of this kind."""
    return kind in _inside.kinds


def is_outermost(kind: str, title: str) -> bool:
    """Whether a call would open a section: none of its kind is open, and none of its name."""
    return not is_inside(kind) and not current().is_in(title)


def _section(kind: str, title: str) -> AbstractContextManager[None]:
    recorder = current()
    if recorder.is_in(title):
        return nullcontext()
    return Section(recorder, title, spoken=is_spoken(kind))


def is_spoken(kind: str) -> bool:
    """Count one more call of its kind; whether it is among the first, which are said."""
    _calls[kind] += 1
    return _calls[kind] <= SPOKEN


Number: TypeAlias = Literal[1, 4, 5, 7, 8, 9, 11, 12]
NAMES: dict[Number, str] = {
    1: "Script started",
    4: "Tokenizer loaded",
    5: "Model created",
    7: "DataModule ready",
    8: "Accelerator configured",
    9: "WandbLogger ready (prime suspect)",
    11: "Trainer ready (prime suspect)",
    12: "Training finished",
}
LARGEST_SCRIPT = 1_000_000  # bytes that are looked at


@cache
def passed(number: Number) -> None:
    """Say that this checkpoint was passed; asking again changes nothing."""
    if not script_names_us():
        current().checkpoint(NAMES[number], number, ours=True)


@cache
def script_names_us() -> bool:
    """Whether the script's own file speaks of this package."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    try:
        with script.open("rb") as file:
            return b"lightning_hangcheck" in file.read(LARGEST_SCRIPT)
    except OSError:  # python -c, python -m
        return False
