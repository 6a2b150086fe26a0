"""The messenger as a program: tells of one hang and ends; started by the sidecar, never by hand.

It is a process of its own so that a service that does not answer, or a package that fails, costs
the sidecar nothing. What could not be told is said once, on the console.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.alerts.asked_for import Errand
from lightning_hangcheck.alerts.hang_command import COMMAND_LIMIT_S, run_hang_command
from lightning_hangcheck.alerts.notifying import NOTIFY_LIMIT_S, notify
from lightning_hangcheck.alerts.telemetry import TELEMETRY_LIMIT_S, send
from lightning_hangcheck.alerts.wandb_alert import WANDB_LIMIT_S, wandb_alert
from lightning_hangcheck.look.proc import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

NAMED_WITHIN_S = 5.0
ERRAND_LIMIT_S = max(COMMAND_LIMIT_S, NOTIFY_LIMIT_S) + 15
"""Of the whole process: its start on a loaded machine comes on top of the longest way."""


class Way(NamedTuple):
    """A way to tell of a hang.

    Attributes:
        tell: Does so; returns what went wrong, a sentence each.
        limit_s: Seconds for it; a thread that is late is left behind.
    """

    option: str
    tell: Callable[[], Sequence[str]]
    limit_s: float


def run_errand(errand: Errand) -> None:
    """Tell everybody, all at the same time, each within its own limit."""
    asked_for, news = errand.asked_for, errand.news
    sys.path.extend(asked_for.packages)
    os.environ.update(asked_for.environment)  # proxies; and the key of wandb
    began = time.monotonic()
    threads = {way: threading.Thread(target=_go, args=(way,), daemon=True) for way in _ways(errand)}
    for thread in threads.values():
        thread.start()
    if asked_for.on_hang_exec is not None:
        trouble = run_hang_command(asked_for.on_hang_exec, news, asked_for.environment)
        if trouble:
            log.once("on hang exec", trouble)
    for way, thread in threads.items():
        thread.join(max(0.0, began + way.limit_s - time.monotonic()))
        if thread.is_alive():
            log.once(way.option, f"{way.option}: no answer within {way.limit_s:g} s")


def _ways(errand: Errand) -> list[Way]:
    """All that was asked for, but the command."""
    asked_for, news = errand.asked_for, errand.news
    ways = []
    if asked_for.notify:
        # bounded by itself, so that each address which is late is named
        limit_s = NOTIFY_LIMIT_S + NAMED_WITHIN_S
        ways.append(Way("--notify", partial(notify, asked_for.notify, news), limit_s))
    if asked_for.otel:
        ways.append(Way("--otel", lambda: [send(news)], TELEMETRY_LIMIT_S))
    if asked_for.wandb:
        run, environment = errand.experiment, asked_for.environment
        ways.append(
            Way("--wandb-alert", lambda: [wandb_alert(news, run, environment)], WANDB_LIMIT_S)
        )
    return ways


def _go(way: Way) -> None:
    for trouble in filter(None, way.tell()):
        log.once(trouble, trouble)


def _leave(number: int, _: FrameType | None) -> None:
    """Leave by way of what is open, so that the command's process group is ended, too."""
    sys.exit(128 + number)


def main() -> None:
    """Read the errand from standard input and run it."""
    signal.alarm(round(ERRAND_LIMIT_S))
    for ending in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(ending, _leave)
    try:
        run_errand(msgspec.json.decode(sys.stdin.buffer.read(), type=Errand))
    except SystemExit:
        _end_what_runs()
        raise


def _end_what_runs() -> None:
    """Told to leave while it starts the command, nobody but the kernel knows of that yet."""
    for ref in descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(ref.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
