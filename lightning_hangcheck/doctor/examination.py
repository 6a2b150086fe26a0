"""Runs checks in parallel, each within its own time limit, and renders the result as text."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, get_args

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.doctor import (  # noqa: F401 - each registers its checks
    data_checks,
    environment_checks,
    every_run_checks,
    launch_checks,
    memory_checks,
    ranks_checks,
    storage_checks,
)
from lightning_hangcheck.doctor.check import (
    CHECKS,
    GROUPS,
    Check,
    Finding,
    Status,
    Subject,
    warning,
)
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import one_line, several, visible
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_ONCE = 8
"""Checks mostly wait, and `time_limit` has 16 places for the whole process."""
WIDTH, STATUS_WIDTH, NAME_WIDTH = 110, 9, 24
MARGIN = " " * (2 + STATUS_WIDTH + NAME_WIDTH)
STYLES = {
    r"(?m)^  ok\b": "green",
    r"(?m)^  warning\b": "bold yellow",
    r"(?m)^  failed\b": "bold red",
    r"(?m)^\S.*$": "bold",
}
"""Terminal styles by pattern. No meaning is carried by colour alone."""


class Examination(Struct, frozen=True, kw_only=True):
    """All findings, ordered by group.

    Attributes:
        status: The worst status of all; a warning if nothing was checked.
    """

    status: Status
    seconds: float
    answers: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0 if all is well, 1 after a warning, 2 after a failure."""
        return get_args(Status).index(self.status)


def checks_of(groups: Sequence[str] = ()) -> list[Check]:
    """Return the checks of these groups (default: all) in display order."""
    asked = [group for group in GROUPS if group in (groups or GROUPS)]
    return [check for group in asked for check in CHECKS if check.group == group]


def examine(subject: Subject, checks: Sequence[Check]) -> Examination:
    """Make all checks; those that would disturb others run last, one by one."""
    began = time.monotonic()
    ask = partial(_ask, subject)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hangcheck-check") as pool:
        answers = [*pool.map(ask, [check for check in checks if not check.alone])]
    answers += map(ask, (check for check in checks if check.alone))
    order = list(dict.fromkeys(check.group for check in checks))
    found = sorted(
        (answer for some in answers for answer in some),
        key=lambda answer: order.index(answer.group),
    )
    return Examination(
        status=max(
            (answer.status for answer in found), key=get_args(Status).index, default="warning"
        ),
        seconds=round(time.monotonic() - began, 3),
        answers=tuple(found),
    )


def _ask(subject: Subject, check: Check) -> list[Finding]:
    began = time.monotonic()
    why = ""
    try:
        found = check(subject) if check.alone else within(check.limit_s, lambda: check(subject))
    except NoAnswer as error:
        why = f": {error}"
    except Exception as error:  # noqa: BLE001 - the other checks must still run
        why = f" ({type(error).__name__}: {error})"
    if why:
        again = f"hangcheck doctor --only {check.group}"
        made = warning(f"could not be checked{why}", again, check=check.name)
        found = (replace(made, group=check.group, looked_at=check.looked_at, why=check.why),)
    seconds = round(time.monotonic() - began, 3)
    # findings contain text from users' files and variables: redact secrets, keep to one line
    return [
        replace(
            finding,
            found=one_line(redact_text(finding.found)),
            remedy=redact_text(finding.remedy),
            commands=tuple(map(redact_text, finding.commands)),
            seconds=seconds,
            details=tuple(visible(redact_text(line)) for line in finding.details),
        )
        for finding in found
    ]


def render(examination: Examination) -> str:
    """Render an examination as text; what is not ok gets reason and remedy."""
    answers = examination.answers
    if not answers:
        return (
            "nothing was checked: no check of these groups applies; name what the run needs, for "
            "example: hangcheck doctor --needs FILE --checkpoints PLACE -- torchrun train.py\n"
        )
    statuses = [answer.status for answer in answers]
    failures, warnings = statuses.count("failed"), statuses.count("warning")
    counts = [f"{failures} failed"] * bool(failures) + [several(warnings, "warning")] * bool(
        warnings
    )
    checks = f"{several(len(answers), 'check')} in {examination.seconds:.1f} s"
    lines = [f"{', '.join(counts) or 'all is well'}: {checks}"]

    def add(label: str, texts: Sequence[str], status: str = "") -> None:
        first, *others = texts or [""]
        lines.append(f"  {status:<{STATUS_WIDTH}}{label:<{NAME_WIDTH}}{first}".rstrip())
        lines.extend(f"{MARGIN}{text}" for text in others)

    def wrapped(text: str) -> list[str]:
        width = WIDTH - len(MARGIN)
        return wrap(text, width, break_long_words=False, break_on_hyphens=False)

    for group, of_group in groupby(answers, key=lambda answer: answer.group):
        lines += ["", group]
        for answer in of_group:
            add(answer.check, [*wrapped(answer.found), *answer.details], answer.status)
            if answer.status != "ok":
                add("looked at", wrapped(answer.looked_at))
                add("why", wrapped(answer.why))
                add("do", answer.remedy.splitlines())  # not wrapped, for copying
    return "\n".join(lines) + "\n"
