"""Children of multiprocessing that may become ranks: which ones, who starts them says.

torch.multiprocessing.spawn and start_processes number their children, and with them Lightning's
``ddp_spawn`` and ``ddp_notebook``; a script that starts its own mostly hands each its ``rank``. A
child that ends before it has joined is known by that alone.
"""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.zero_code.wrapping import Call, wrap
from lightning_hangcheck.identity import identify
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Iterator

TORCHS_TARGET = ("torch.multiprocessing.spawn", "_wrap")
TORCHS_NUMBER = "i"
"""Its second parameter (torch 1.0 to 2.15): the number that the user's function gets, too."""
NUMBERS = ("rank", "global_rank", "local_rank", "process_idx")


def watch_children() -> None:
    """Have each child of this process announce itself, and this process if it is about to begin.

    multiprocessing calls ``_bootstrap`` in each child, however that was started (Python 3.8 to
    3.15), and from there ``run``, once the child knows itself to be one.
    """
    wrap(BaseProcess, "_bootstrap", _beginning)
    wrap(BaseProcess, "join", _joining)


@contextmanager
def _beginning(call: Call) -> Iterator[None]:
    """What ranks start, or what a launcher numbered, has nothing to announce."""
    number = number_of(call.instance)
    if number is not None and identify(os.environ).launcher == "none":

        @contextmanager
        def running(_call: Call) -> Iterator[None]:
            current().announce(number)
            yield

        wrap(call.instance, "run", running)
    yield


@contextmanager
def _joining(call: Call) -> Iterator[None]:
    """Who joins a child has reaped it: the exit code is gone for all others from then on."""
    yield
    child = call.instance
    if child.exitcode is not None:
        current().note_child_end(child.pid, child.exitcode)


def number_of(process: BaseProcess) -> int | None:
    """Return the number that a process was given by who started it; None where it has none.

    Args:
        process: As multiprocessing keeps it.
    """
    target = getattr(process, "_target", None)
    if target is None:
        return _number(getattr(process, "rank", None))
    given = (getattr(process, "_args", ()), getattr(process, "_kwargs", {}))
    try:
        named = inspect.signature(target).bind_partial(*given[0], **given[1]).arguments
    except (TypeError, ValueError):  # it cannot be called so, or is of C
        return None
    torchs = (target.__module__, getattr(target, "__name__", "")) == TORCHS_TARGET
    names = (TORCHS_NUMBER,) if torchs else NUMBERS
    return next((_number(named[name]) for name in names if name in named), None)


def _number(given: object) -> int | None:
    return given if type(given) is int and given >= 0 else None
