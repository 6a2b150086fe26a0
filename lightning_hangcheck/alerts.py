"""Who hears of a hang: the messenger tells people and commands, metrics are for Prometheus.

The messenger is a process that tells of one hang and ends. The sidecar starts it, so that a service
that does not answer, or a package that fails, costs the sidecar nothing. A failed delivery is
logged once on the console. ``--notify`` sends messages through apprise; ``--on-hang-exec`` runs a
line of the user's in a shell.

An address holds tokens, so none is ever shown: it is named by its place among the addresses and by
the service in front of its ``://``.
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
from lightning_hangcheck.files.safe import NEW_FILE, PRIVATE_FILE
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
"""apprise gives a service some seconds to answer, and some services are asked twice."""
COMMAND_LIMIT_S = 60.0
"""Enough to call a service or to ask a scheduler, too little for a job of its own."""
AT_THE_END_S = 15.0
"""For what is under way at the job's end, from then on: `hangcheck run` waits for it."""


class AlertsAskedFor(Struct, frozen=True, kw_only=True, tag="alerts"):
    """From `hangcheck run` to its sidecar, over their pipe: this holds secrets.

    It is on no command line, in no file and in no environment of a process of ours.

    Attributes:
        environment: Of `hangcheck run`: what the command is run with, and the proxies in it.
        packages: Folders of optional packages that a process of ours may not find by itself.
    """

    notify: tuple[str, ...] = ()
    on_hang_exec: str | None = None
    environment: dict[str, str] = {}
    packages: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self.notify) or self.on_hang_exec is not None


class HangNews(Struct, frozen=True, kw_only=True):
    """A hang that was found, for who gets a message.

    Attributes:
        number: Of the verdict in its run folder; None where it could not be saved in time.
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
        """The page, which is written a moment after the verdict."""
        return f"{self.run_dir}/report.html"


class Delivery(Struct, frozen=True):
    """What the messenger reads from its standard input."""

    asked_for: AlertsAskedFor
    news: HangNews


def deliver(delivery: Delivery) -> None:
    """Tell everybody at the same time, each within its own limit."""
    asked_for, news = delivery.asked_for, delivery.news
    sys.path.extend(asked_for.packages)
    os.environ.update(asked_for.environment)  # proxies

    def send() -> None:
        for failure in notify(asked_for.notify, news):
            log.once(failure, failure)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    if asked_for.on_hang_exec is not None:
        failure = run_hang_command(asked_for.on_hang_exec, news, asked_for.environment)
        if failure:
            log.once("on hang exec", failure)
    # it is bounded by itself, so that each address which is late is named
    sending.join(NOTIFY_LIMIT_S + 5.0)


def run_hang_command(
    line: str, news: HangNews, environment: Mapping[str, str], time_limit_s: float = COMMAND_LIMIT_S
) -> str:
    """Run it to its end; its whole process group ends with it, or at the limit.

    It finds the user's environment, without our secrets, and the news.

    Returns:
        What went wrong, in one sentence; empty if nothing did.
    """
    # a new file beside the verdict's evidence, where there is one
    path = Path(news.run_dir, "evidence", str(news.number), "on-hang-exec.txt")
    flags = os.O_WRONLY | os.O_APPEND | NEW_FILE
    try:
        # storage that does not answer must not keep the command from running
        output = within(2.0, lambda: os.open(path, flags, PRIVATE_FILE))
        where = f"what it printed is in {path}"
    except (OSError, NoAnswer):
        output, where = os.open(os.devnull, os.O_WRONLY), "what it printed could not be kept"
    # the numbered verdict, which later ones do not replace; where it was not saved, the newest
    verdict = "verdict.json" if news.number is None else f"verdicts/{news.number}.json"
    told = {
        "CAUSE": news.cause,
        "CULPRITS": ",".join(map(str, news.culprits)),
        "KIND": news.kind,
        "REPORT": news.report_file,
        "RUN_DIR": news.run_dir,
        "SUMMARY": news.text,
        "VERDICT": f"{news.run_dir}/{verdict}",
    }
    given = {name: value for name, value in environment.items() if name not in ONLY_OF_RUN}
    given |= {f"{PREFIX}{name}": value.replace("\0", " ") for name, value in told.items()}
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
    """Find the folder of modules in which apprise lies, as our processes start without it.

    Raises:
        BadUsage: It is not installed, or does not know an address: what could tell nobody at night
            is refused at the start of a run.
    """
    if not addresses:
        return ()
    spec = find_spec("apprise")
    if spec is None or spec.origin is None:
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
    return (str(Path(spec.origin).parents[1]),)


def named(number: int, address: str) -> str:
    """Name an address without telling it; what follows the option's own name would be hidden."""
    service, *rest = address.split("://", 1)
    known = rest and len(service) <= 20 and service.isalnum()
    return f"notify address {number}" + (f" ({service}://)" if known else "")


def notify(
    addresses: Sequence[str], news: HangNews, time_limit_s: float = NOTIFY_LIMIT_S
) -> list[str]:
    """Send the news to all of them at the same time.

    Returns:
        What went wrong, a sentence for each address that was not reached.
    """
    outcomes = [f"no answer within {time_limit_s:g} s"] * len(addresses)
    body = f"{news.text}\nreport: {news.report_file}"

    def send(at: int, courier: Apprise | None) -> None:
        """Send it to one, and note what went wrong, without a word of the address."""
        if courier is None:
            outcomes[at] = "apprise does not know it"
            return
        try:
            sent = courier.notify(title=news.title, body=body, notify_type="failure")
        except Exception as error:  # noqa: BLE001 - whatever a service's own code does wrong
            outcomes[at] = type(error).__name__
            return
        outcomes[at] = "" if sent else "it did not take the message; try it: apprise -vv ADDRESS"

    threads = [
        threading.Thread(target=send, args=numbered, daemon=True)
        for numbered in enumerate([_courier_of(address) for address in addresses])
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
    """Who carries messages to an address; None where apprise does not know it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it loads its services here, and is not ours to mend
        import apprise

        for name in ("apprise", "urllib3", "requests"):  # they log addresses with their secrets
            logger = logging.getLogger(name)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
        courier = apprise.Apprise(asset=apprise.AppriseAsset(async_mode=False))
        return courier if courier.add(address) else None


STATES: dict[VerdictKind, int] = {"suspect": 1, "hang": 2, "dead": 3}
"""Of the verdict that stands; all others are 0. A public promise: alert rules compare with it."""
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
"""Each by its name, with its HELP."""


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
    """Write a run at one moment in Prometheus' text format, version 0.0.4.

    Args:
        run_id: May be any text.
        written: Now, in seconds of Unix time; so is the ``progress`` of each rank.
        standing: The verdict that stands; at the end the last one; None where nothing was found.
        stall_s: How long the stall that stands has lasted.
        progress: When each rank last advanced.
        watching: False once the run has ended.
        exit_code: Of the command; None while it runs, and where nobody knows it.
    """
    state = STATES.get(standing, 0) if standing is not None else 0
    told: tuple[dict[int | None, float], ...] = (
        {None: state},
        {rank: round(moment, 3) for rank, moment in sorted(progress.items())},
        {None: round(stall_s, 3)},
        {None: int(watching)},
        {None: round(written, 3)},
        {} if exit_code is None else {None: exit_code},
    )
    # a label's value: a run folder may be called anything
    escaped = run_id.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    lines = []
    for (metric, meaning), samples in zip(METRICS.items(), told, strict=True):
        if metric == "hangcheck_exit_code" and not samples:
            continue
        lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} gauge"]
        for rank, value in samples.items():
            of_rank = "" if rank is None else f',rank="{rank}"'
            lines.append(f'{metric}{{run="{escaped}"{of_rank}}} {value!r}')
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def main() -> None:
    """Read the delivery from standard input and run it."""
    # its start on a loaded machine comes on top of the longest delivery
    signal.alarm(round(max(COMMAND_LIMIT_S, NOTIFY_LIMIT_S) + 15))

    def leave(number: int, _: FrameType | None) -> None:
        """Leave by way of what is open, so that the command's process group is ended, too."""
        sys.exit(128 + number)

    for ending in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(ending, leave)
    try:
        deliver(msgspec.json.decode(sys.stdin.buffer.read(), type=Delivery))
    except SystemExit:
        # a command that is being started at that moment is known to nobody but the kernel yet
        for ref in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(ref.pid, signal.SIGKILL)
        raise


if __name__ == "__main__":
    main()
