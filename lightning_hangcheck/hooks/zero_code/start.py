"""Records unchanged scripts, when `hangcheck run` starts them.

In every process Python imports ``sitecustomize`` from `inject` before the script. That file decides
whether the process is a rank, and only then uses this module. The code that wraps frameworks is
imported with the first framework: a rank without frameworks does not pay for it.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import cache
from pathlib import Path

from lightning_hangcheck.hooks.being_watched import be_watched
from lightning_hangcheck.recorder.lifecycle import current

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeAlias

    Number: TypeAlias = Literal[1, 4, 5, 7, 8, 9, 11, 12]


INJECT_FOLDER = Path(__file__).parent / "inject"
LARGEST_SCRIPT = 1_000_000  # bytes that are read
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
"""Checkpoints of the reference script that a watched call proves."""


def start() -> None:
    """Record this process from here on: its page, pulse, records, last words and exit."""
    be_watched(current())
    # at exit, Python calls functions registered here, then waits for non-daemon threads, then calls
    # exit handlers; private, because nothing else is called that early (3.10 to 3.13)
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(current().begin_shutdown)
    passed(1)


def injected(python_path: str | None) -> str:
    """Return the PYTHONPATH with our folder in front."""
    return os.pathsep.join(filter(None, (str(INJECT_FOLDER), python_path)))


@cache
def passed(number: Number) -> None:
    """Report once that a checkpoint was passed, unless the script uses this package itself."""
    if not _script_names_us():
        current().checkpoint(NAMES[number], number, ours=True)


def passing(number: Number) -> Callable[[object], None]:
    """Make a function that reports this checkpoint, whatever call it is given."""
    return lambda _: passed(number)


@cache
def _script_names_us() -> bool:
    script = Path(sys.argv[0]) if sys.argv else Path()
    try:
        with script.open("rb") as file:
            return b"lightning_hangcheck" in file.read(LARGEST_SCRIPT)
    except OSError:  # python -c, python -m
        return False
