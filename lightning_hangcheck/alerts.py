"""Reports a hang: a messenger process informs people and commands; metrics are for Prometheus.

The messenger reports one hang and exits. The sidecar starts it as a process, so that a service that
does not answer, or a package that fails, cannot delay the sidecar. A failed delivery is logged
once. ``--notify`` sends messages through apprise; ``--on-hang-exec`` runs the user's shell command.

Addresses contain tokens and are never shown. An address is named by its position in the list and by
the service before its ``://``.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.files import NEW_FILE, PRIVATE_FILE
from lightning_hangcheck.look.proc import descendants
from lightning_hangcheck.look.programs import ChildLate, run_to_its_end
from lightning_hangcheck.model.slugs import VerdictKind
from lightning_hangcheck.settings import ONLY_OF_RUN, PREFIX
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from apprise import Apprise

NOTIFY_LIMIT_S = 30.0
"""apprise gives a service some seconds to answer, and tries some services twice."""
COMMAND_LIMIT_S = 60.0
"""Enough to call a service or to query a scheduler, not for a job."""
AT_THE_END_S = 15.0
"""For running deliveries, counted from the job's end: `hangcheck run` waits for them."""


class AlertsAskedFor(Struct, frozen=True, kw_only=True, tag="alerts"):
    """Sent by `hangcheck run` to its sidecar through their pipe; contains secrets.

    It appears on no command line, in no file and in no environment of our processes.

    Attributes:
        environment: Environment of `hangcheck run`, for the command; includes proxies.
        packages: Folders of optional packages that our processes may not find by themselves.
    """

    notify: tuple[str, ...] = ()
    on_hang_exec: str | None = None
    environment: dict[str, str] = {}
    packages: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether any alert was requested."""
        return bool(self.notify) or self.on_hang_exec is not None


class HangNews(Struct, frozen=True, kw_only=True):
    """A hang, as reported by messages.

    Attributes:
        number: Of the verdict in its run folder; None if it could not be saved in time.
    """

    kind: VerdictKind
    cause: str
    culprits: tuple[int, ...]
    title: str
    text: str
    run_dir: str
    number: int | None = None

    @property
    def report_file(self) -> str:
        """The page, written shortly after the verdict."""
        return f"{self.run_dir}/report.html"


class Delivery(Struct, frozen=True):
    """What the messenger reads from its standard input."""

    asked_for: AlertsAskedFor
    news: HangNews


def deliver(delivery: Delivery) -> None:
    """Send all messages and run the command in parallel, each within its own limit."""
    asked_for, news = delivery.asked_for, delivery.news
    sys.path.extend(asked_for.packages)
    os.environ.update(asked_for.environment)  # proxies

    def send() -> None:
        for failure in notify(asked_for.notify, news):
            log.once(failure, failure)

    # no thread that an exit on a signal would wait for
    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    if asked_for.on_hang_exec is not None:
        failure = run_hang_command(asked_for.on_hang_exec, news, asked_for.environment)
        if failure:
            log.once("on hang exec", failure)
    # `notify` has a limit itself, so that each late address is named
    sending.join(NOTIFY_LIMIT_S + 5.0)


def run_hang_command(
    line: str, news: HangNews, environment: Mapping[str, str], time_limit_s: float = COMMAND_LIMIT_S
) -> str:
    """Run the command to its end or its limit, then end its process group.

    It gets the user's environment, without our secrets, and the news.

    Returns:
        What went wrong, in one sentence; empty if nothing did.
    """
    # a new file next to the verdict's evidence, if there is any
    path = Path(news.run_dir, "evidence", str(news.number), "on-hang-exec.txt")
    flags = os.O_WRONLY | os.O_APPEND | NEW_FILE
    try:
        # stalled storage must not keep the command from running
        output = within(2.0, lambda: os.open(path, flags, PRIVATE_FILE))
        where = f"what it printed is in {path}"
    except (OSError, NoAnswer):
        output, where = os.open(os.devnull, os.O_WRONLY), "what it printed could not be kept"
    # the numbered verdict, which is not overwritten; if it was not saved, the newest
    verdict = "verdict.json" if news.number is None else f"verdicts/{news.number}.json"
    extra = {
        "CAUSE": news.cause,
        "CULPRITS": ",".join(map(str, news.culprits)),
        "KIND": news.kind,
        "REPORT": news.report_file,
        "RUN_DIR": news.run_dir,
        "SUMMARY": news.text,
        "VERDICT": f"{news.run_dir}/{verdict}",
    }
    given = {name: value for name, value in environment.items() if name not in ONLY_OF_RUN}
    given |= {f"{PREFIX}{name}": value.replace("\0", " ") for name, value in extra.items()}
    try:
        code = run_to_its_end(["/bin/sh", "-c", line], time_limit_s, given, output)
    except ChildLate:
        return f"the command of --on-hang-exec was ended after {time_limit_s:g} s; {where}"
    except OSError as error:
        return f"the command of --on-hang-exec cannot be started ({error.strerror})"
    finally:
        os.close(output)
    return f"the command of --on-hang-exec failed (exit code {code}); {where}" if code else ""


def apprise_packages(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the folders of apprise and what it imports: our processes do not find it themselves.

    Raises:
        BadUsage: apprise is missing or does not know an address. This is refused at the start of a
            run, before it could fail at night.
    """
    if not addresses:
        return ()
    if find_spec("apprise") is None:
        raise BadUsage(
            "--notify needs the package apprise, which is not installed",
            "pip install 'lightning-hangcheck[notify]'",
        )
    for number, address in enumerate(addresses, 1):
        if _courier_of(address) is None:
            raise BadUsage(
                f"{named(number, address)} is not an address that apprise knows",
                "write one as https://github.com/caronc/apprise/wiki says: json://host:8000",
            )
    return tuple(filter(os.path.isabs, sys.path))


def named(number: int, address: str) -> str:
    """Name an address without revealing it; text after the option's name would be redacted."""
    service, *rest = address.split("://", 1)
    known = rest and len(service) <= 20 and service.isalnum()
    return f"notify address {number}" + (f" ({service}://)" if known else "")


def notify(
    addresses: Sequence[str], news: HangNews, time_limit_s: float = NOTIFY_LIMIT_S
) -> list[str]:
    """Send the news to all addresses in parallel; return a sentence for each not reached."""
    outcomes = [f"no answer within {time_limit_s:g} s"] * len(addresses)
    body = f"{news.text}\nreport: {news.report_file}"

    def send(at: int, address: str) -> None:
        """Send to one address, and record failures without any part of the address."""
        try:
            courier, outcome = _courier_of(address), "apprise does not know it"
            if courier is not None:
                sent = courier.notify(title=news.title, body=body, notify_type="failure")
                refused = "it did not take the message; try it: apprise -vv ADDRESS"
                outcome = "" if sent else refused
        except Exception as error:  # noqa: BLE001 - code of a service may raise anything
            outcome = type(error).__name__
        outcomes[at] = outcome

    threads = [
        threading.Thread(target=send, args=numbered, daemon=True)
        for numbered in enumerate(addresses)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + time_limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    pairs = zip(addresses, list(outcomes), strict=True)
    return [
        f"{named(number, address)} was not reached: {outcome}"
        for number, (address, outcome) in enumerate(pairs, start=1)
        if outcome
    ]


def _courier_of(address: str) -> Apprise | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about apprise's services: not ours to fix
        import apprise

        for name in ("apprise", "urllib3", "requests"):  # their logs contain addresses with secrets
            logger = logging.getLogger(name)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
        courier = apprise.Apprise(asset=apprise.AppriseAsset(async_mode=False))
        return courier if courier.add(address) else None


STATES: dict[VerdictKind, int] = {"suspect": 1, "hang": 2, "dead": 3}
"""By current verdict; all others are 0. A public promise: alert rules compare these."""
METRICS = {
    "hangcheck_state": "State of the job: 0 ok, 1 suspect, 2 hang, 3 dead.",
    "hangcheck_last_progress_timestamp_seconds": (
        "Unix time of the last sign of progress of each rank of this node."
    ),
    "hangcheck_stall_seconds": (
        "Length of the stall that stands, when this was written; 0 if none does."
    ),
    "hangcheck_watching": "1 while the run is watched, 0 once it has ended.",
    "hangcheck_written_timestamp_seconds": "Unix time at which this was written.",
    "hangcheck_exit_code": "Exit code of the command that was run, at its end.",
}
"""HELP text by name."""


def metrics_text(
    *,
    run_id: str,
    written: float,
    standing: VerdictKind | None = None,
    stall_s: float = 0.0,
    progress: Mapping[int, float] = MappingProxyType({}),
    watching: bool = True,
    exit_code: int | None = None,
) -> bytes:
    """Write the state of a run in Prometheus' text format, version 0.0.4.

    Args:
        run_id: Any text.
        written: Now, in seconds of Unix time; so is the ``progress`` of each rank.
        standing: The current verdict, at the end the last one; None if there is none.
        stall_s: Length of the current stall in seconds.
        progress: When each rank last advanced.
        watching: False once the run has ended.
        exit_code: Of the command; None while it runs, or if unknown.
    """
    state = STATES.get(standing, 0) if standing is not None else 0
    readings: tuple[dict[int | None, float], ...] = (
        {None: state},
        {rank: round(moment, 3) for rank, moment in sorted(progress.items())},
        {None: round(stall_s, 3)},
        {None: int(watching)},
        {None: round(written, 3)},
        {} if exit_code is None else {None: exit_code},
    )
    # label value: a run folder may have any name
    escaped = run_id.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    lines = []
    for (metric, meaning), samples in zip(METRICS.items(), readings, strict=True):
        if metric == "hangcheck_exit_code" and not samples:
            continue
        lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} gauge"]
        for rank, value in samples.items():
            of_rank = "" if rank is None else f',rank="{rank}"'
            lines.append(f'{metric}{{run="{escaped}"{of_rank}}} {value!r}')
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def main() -> None:
    """Read the delivery from standard input and run it."""
    # start-up on a loaded machine adds to the longest delivery
    signal.alarm(round(max(COMMAND_LIMIT_S, NOTIFY_LIMIT_S) + 15))

    def leave(number: int, _: FrameType | None) -> None:
        """Exit through open contexts, so that the command's process group is ended, too."""
        sys.exit(128 + number)

    for ending in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(ending, leave)
    try:
        deliver(msgspec.json.decode(sys.stdin.buffer.read(), type=Delivery))
    except SystemExit:
        # a command that is just being started is known only to the kernel
        for ref in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(ref.pid, signal.SIGKILL)
        raise


if __name__ == "__main__":
    main()
