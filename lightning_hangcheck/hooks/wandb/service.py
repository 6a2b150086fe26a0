"""wandb's service process: which is ours, and how to end it.

A service whose server does not answer outlives its owner while it tries on, and holds its pipes
open: whoever waits for the job's output waits with it.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.look.proc import command_line, descendants
from lightning_hangcheck.machine.process_stat import is_alive
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.time_limit import within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.look.proc import ProcessRef

PROGRAM = "wandb-core"
CLOSING_LIMIT = 2.0  # seconds; measured on wandb 0.31: under 0.1 s, unless its server is stuck
ENDING_LIMIT = 1.0  # seconds between SIGTERM and SIGKILL; it has nothing to save
LOOK_INTERVAL = 0.02  # seconds


def services() -> frozenset[ProcessRef]:
    """Find wandb's service processes that this process started."""
    children = (ref for ref in descendants(os.getpid()) if ref.parent_pid == os.getpid())
    return frozenset(child for child in children if _is_service(child))


def abandon(before: frozenset[ProcessRef]) -> None:
    """Close wandb's connection to its service, so that a next run gets a fresh one.

    A run that was there before ours is left alone, and so is a service that was.

    Args:
        before: The services before ours was tried.
    """
    import wandb

    if wandb.run is not None:
        return
    ours = services() - before
    # wandb forgets the service first and then waits for it; however that ends, it is forgotten
    with suppress(Exception):
        within(CLOSING_LIMIT, partial(wandb.teardown, exit_code=1))
    end_services(ours)


def end_services(processes: Iterable[ProcessRef]) -> None:
    """End these services, those that don't listen by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _end(processes, number)


def _is_service(process: ProcessRef) -> bool:
    words = command_line(process.pid)
    return not isinstance(words, Gap) and bool(words) and Path(words[0]).name == PROGRAM


def _end(processes: Iterable[ProcessRef], number: signal.Signals) -> None:
    """Signal those that still live, and give them a moment."""
    alive = [ref for ref in processes if is_alive(ref.pid, ref.started_ticks)]
    for process in alive:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
    deadline = time.monotonic() + ENDING_LIMIT
    while time.monotonic() < deadline and any(is_alive(r.pid, r.started_ticks) for r in alive):
        time.sleep(LOOK_INTERVAL)
