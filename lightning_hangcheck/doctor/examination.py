"""All checks of some groups, side by side, each within its own time limit; and as text."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, get_args

from msgspec import Struct

from lightning_hangcheck.doctor import (
    data_checks,
    environment_checks,
    launch_checks,
    memory_checks,
    ranks_checks,
    seeing_checks,
    storage_checks,
)
from lightning_hangcheck.doctor.check import CHECKS, GROUPS, Check, Status, Subject, warning
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import one_line, several, visible
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MODULES = (
    *(seeing_checks, launch_checks, ranks_checks, environment_checks, storage_checks),
    *(data_checks, memory_checks),
)
"""The modules whose checks these are."""
AT_ONCE = 8
"""Checks wait for others rather than compute, and `time_limit` gives 16 places to all of us."""
WIDTH, STATUS_WIDTH, NAME_WIDTH = 110, 9, 24
MARGIN = " " * (2 + STATUS_WIDTH + NAME_WIDTH)
STYLES = {
    r"(?m)^  ok\b": "green",
    r"(?m)^  warning\b": "bold yellow",
    r"(?m)^  failed\b": "bold red",
    r"(?m)^\S.*$": "bold",
}
"""How a terminal shows it: each pattern with its style. Nothing is said by colour alone."""


class Answer(Struct, frozen=True, kw_only=True):
    """What one check found, with all that a reader needs to act on it.

    Attributes:
        why: What goes wrong in a run where this is not ok.
        remedy: All that there is to do, `commands` included; empty where nothing is needed.
    """

    group: str
    check: str
    status: Status
    looked_at: str
    found: str
    why: str
    remedy: str
    commands: tuple[str, ...] = ()
    seconds: float
    details: tuple[str, ...] = ()


class Examination(Struct, frozen=True, kw_only=True):
    """All answers, by group.

    Attributes:
        status: The worst of all; a warning where nothing was checked.
    """

    status: Status
    seconds: float
    answers: tuple[Answer, ...]

    @property
    def exit_code(self) -> int:
        """0 where all is well, 1 after a warning, 2 where something failed."""
        return get_args(Status).index(self.status)


def checks_of(groups: Sequence[str] = ()) -> list[Check]:
    """Return the checks of these groups, or all of them, in the order in which they are shown."""
    asked = [one for one in CHECKS if not groups or one.group in groups]
    return sorted(asked, key=lambda one: [*GROUPS].index(one.group))  # type: ignore[arg-type]


def examine(subject: Subject, checks: Sequence[Check]) -> Examination:
    """Make all checks; those that would disturb others come when these are done."""
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hangcheck-check") as pool:
        quiet = [one for one in checks if not one.alone]
        answers = [one for some in pool.map(partial(_ask, subject), quiet) for one in some]
    answers += [one for check in checks if check.alone for one in _ask(subject, check)]
    order = list(dict.fromkeys(check.group for check in checks))
    answers.sort(key=lambda answer: order.index(answer.group))
    return Examination(
        status=max((one.status for one in answers), key=get_args(Status).index, default="warning"),
        seconds=round(time.monotonic() - began, 3),
        answers=tuple(answers),
    )


def _ask(subject: Subject, check: Check) -> list[Answer]:
    began = time.monotonic()
    why = ""
    try:
        found = check(subject) if check.alone else within(check.limit_s, lambda: check(subject))
    except NoAnswer as error:
        why = f": {error}"
    except Exception as error:  # noqa: BLE001 - a check that fails says nothing about the others
        why = f" ({type(error).__name__}: {error})"
    if why:
        again = f"hangcheck doctor --only {check.group}"
        found = (warning(f"could not be checked{why}", again, check=check.name),)
    seconds = round(time.monotonic() - began, 3)
    # what is shown was read from files and variables of others: no secret, one line
    return [
        Answer(
            group=check.group,
            check=one.check,
            status=one.status,
            looked_at=check.looked_at,
            found=one_line(redact_text(one.sentence)),
            why=check.why,
            remedy=redact_text(one.remedy),
            commands=tuple(map(redact_text, one.commands)),
            seconds=seconds,
            details=tuple(visible(redact_text(line)) for line in one.details),
        )
        for one in found
    ]


def render(examination: Examination) -> str:
    """Write an examination for people: why and what to do below what is not ok."""
    answers = examination.answers
    checks = f"{several(len(answers), 'check')} in {examination.seconds:.1f} s"
    statuses = [answer.status for answer in answers]
    failures, warnings = statuses.count("failed"), statuses.count("warning")
    told = [f"{failures} failed"] * bool(failures) + [several(warnings, "warning")] * bool(warnings)
    lines = [f"{', '.join(told) or 'all is well'}: {checks}"]
    if not answers:
        lines = [
            "nothing was checked: no check of these groups applies; name what the run needs, for "
            "example: hangcheck doctor --needs FILE --checkpoints PLACE -- torchrun train.py"
        ]
    for group, of_group in groupby(answers, key=lambda answer: answer.group):
        lines += ["", group]
        for answer in of_group:
            lines += _row(answer.status, answer.check, _wrapped(answer.found))
            lines += [f"{MARGIN}{line}" for line in answer.details]
            if answer.status != "ok":
                lines += _row("", "looked at", _wrapped(answer.looked_at))
                lines += _row("", "why", _wrapped(answer.why))
                lines += _row("", "do", answer.remedy.splitlines())  # unbroken, to be copied
    return "\n".join(lines) + "\n"


def _row(status: str, label: str, texts: Sequence[str]) -> Iterator[str]:
    first, *others = texts or [""]
    yield f"  {status:<{STATUS_WIDTH}}{label:<{NAME_WIDTH}}{first}".rstrip()
    yield from (f"{MARGIN}{text}" for text in others)


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH - len(MARGIN), break_long_words=False, break_on_hyphens=False)
