"""The messenger as a program: tells of one hang and ends; started by the sidecar, never by hand.

It is a process of its own so that a service that does not answer, or a package that fails, costs
the sidecar nothing. What could not be told is said once, on the console.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.alerts.asked_for import Errand
from lightning_hangcheck.alerts.hang_command import COMMAND_LIMIT_S, run_hang_command
from lightning_hangcheck.alerts.notifying import NOTIFY_LIMIT_S, notify
from lightning_hangcheck.alerts.telemetry import TELEMETRY_LIMIT_S, send
from lightning_hangcheck.probes.proc.process_tree import descendants

if TYPE_CHECKING:
    from types import FrameType

ERRAND_LIMIT_S = max(COMMAND_LIMIT_S, NOTIFY_LIMIT_S) + 15
"""Of the whole process: its start on a loaded machine comes on top of the longest way."""


def run_errand(errand: Errand) -> None:
    """Tell everybody, all at the same time, each within its own limit."""
    asked_for, news = errand.asked_for, errand.news
    sys.path.extend(asked_for.packages)
    os.environ.update(asked_for.environment)  # proxies; nothing else of it is read from here on

    def tell_people() -> None:
        for trouble in notify(asked_for.notify, news):
            log.once(trouble, trouble)

    def tell_collector() -> None:
        trouble = send(news)
        if trouble:
            log.once("otel", trouble)

    people = threading.Thread(target=tell_people, daemon=True)
    collector = threading.Thread(target=tell_collector, daemon=True)
    if asked_for.notify:
        people.start()
    if asked_for.otel:
        collector.start()
    if asked_for.on_hang_exec is not None:
        trouble = run_hang_command(asked_for.on_hang_exec, news, asked_for.environment)
        if trouble:
            log.once("on hang exec", trouble)
    if asked_for.otel:
        collector.join(TELEMETRY_LIMIT_S)
        if collector.is_alive():
            log.once("otel", f"--otel: no answer of the collector within {TELEMETRY_LIMIT_S:g} s")
    if asked_for.notify:
        people.join()


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
