"""An examination as text: a line a check; below what is not ok why it matters, and what to do."""

from __future__ import annotations

from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.doctor.examination import Answer, Examination

WIDTH = 110
STATUS_WIDTH = 9
NAME_WIDTH = 24
MARGIN = " " * (2 + STATUS_WIDTH + NAME_WIDTH)
STYLES = {
    r"(?m)^  ok\b": "green",
    r"(?m)^  warning\b": "bold yellow",
    r"(?m)^  failed\b": "bold red",
    r"(?m)^\S.*$": "bold",
}
"""How a terminal shows it: each pattern with its style. Nothing is said by colour alone."""


def render(examination: Examination) -> str:
    """Write an examination for people.

    Args:
        examination: Of any groups.
    """
    lines = [_headline(examination)]
    for group, answers in groupby(examination.answers, key=lambda answer: answer.group):
        lines += ["", group]
        for answer in answers:
            lines += _lines(answer)
    return "\n".join(lines) + "\n"


def _headline(examination: Examination) -> str:
    checks = several(len(examination.answers), "check")
    took = f"in {examination.seconds:.1f} s"
    if not examination.answers:
        return (
            "nothing was checked: no check of these groups applies; name what the run needs, for "
            "example: hangcheck doctor --needs FILE --checkpoints PLACE -- torchrun train.py"
        )
    if examination.status == "ok":
        return f"all is well: {checks} {took}"
    failed = f"{examination.count('failed')} failed" if examination.count("failed") else ""
    warnings = several(examination.count("warning"), "warning")
    warned = warnings if examination.count("warning") else ""
    return f"{', '.join(filter(None, (failed, warned)))}: {checks} {took}"


def _lines(answer: Answer) -> list[str]:
    lines = _row(answer.status, answer.check, _wrapped(answer.found))
    lines += [f"{MARGIN}{line}" for line in answer.details]
    if answer.status != "ok":
        lines += _row("", "looked at", _wrapped(answer.looked_at))
        lines += _row("", "why", _wrapped(answer.why))
        lines += _row("", "do", answer.remedy.splitlines())  # unbroken, to be copied
    return lines


def _row(status: str, label: str, texts: Sequence[str]) -> list[str]:
    head = f"  {status:<{STATUS_WIDTH}}{label:<{NAME_WIDTH}}"
    first, *others = texts or [""]
    return [f"{head}{first}".rstrip(), *(f"{MARGIN}{text}" for text in others)]


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH - len(MARGIN), break_long_words=False, break_on_hyphens=False)
