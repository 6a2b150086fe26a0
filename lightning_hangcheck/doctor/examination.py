"""All checks of some groups, side by side, each within its own time limit."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from msgspec import Struct

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.text.plain_text import one_line, visible
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.doctor.question import Question
    from lightning_hangcheck.doctor.subject import Subject

Status = Literal["ok", "warning", "failed"]
EXIT_CODES: dict[Status, int] = {"ok": 0, "warning": 1, "failed": 2}
AT_ONCE = 8
"""Checks wait for others rather than compute, and `time_limit` gives 16 places to all of us."""


class Answer(Struct, frozen=True, kw_only=True):
    """What one check found, with all that a reader needs to act on it.

    Attributes:
        group: That the check belongs to.
        looked_at: What was looked at.
        found: What was seen there.
        details: More of it, a line each.
        why: What goes wrong in a run where this is not ok.
        remedy: The command or line that mends it; empty where nothing is needed.
        seconds: That the check took.
    """

    group: str
    check: str
    status: Status
    looked_at: str
    found: str
    why: str
    remedy: str
    seconds: float
    details: tuple[str, ...] = ()


class Examination(Struct, frozen=True, kw_only=True):
    """All answers, in the order of the questions.

    Attributes:
        status: The worst of all; a warning where nothing was checked.
        seconds: That all took together.
    """

    status: Status
    seconds: float
    answers: tuple[Answer, ...]

    @property
    def exit_code(self) -> int:
        """0 where all is well, 1 after a warning, 2 where something failed."""
        return EXIT_CODES[self.status]

    def count(self, status: Status) -> int:
        """Return how many answers have this status."""
        return sum(answer.status == status for answer in self.answers)


def examine(subject: Subject, questions: Sequence[Question]) -> Examination:
    """Ask all questions; those that would disturb others come when these are done.

    Args:
        subject: The run that is about to start.
        questions: What to ask.
    """
    began = time.monotonic()
    quiet = [question for question in questions if not question.alone]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hangcheck-check") as pool:
        answers = [one for some in pool.map(partial(_ask, subject), quiet) for one in some]
    for question in questions:
        if question.alone:
            answers += _ask(subject, question)
    order: list[str] = list(dict.fromkeys(question.group for question in questions))
    answers.sort(key=lambda answer: order.index(answer.group))
    return Examination(
        status=_worst(answer.status for answer in answers),
        seconds=round(time.monotonic() - began, 3),
        answers=tuple(answers),
    )


def _ask(subject: Subject, question: Question) -> list[Answer]:
    began = time.monotonic()
    try:
        checks = _ask_in_time(subject, question)
    except NoAnswer as error:
        checks = (_not_made(question, f"could not be checked: {error}"),)
    except Exception as error:  # noqa: BLE001 - a check that fails says nothing about the others
        why = f"could not be checked ({type(error).__name__}: {error})"
        checks = (_not_made(question, why),)
    seconds = round(time.monotonic() - began, 3)
    return [_answer(question, check, seconds) for check in checks]


def _ask_in_time(subject: Subject, question: Question) -> tuple[Check, ...]:
    if question.alone:
        return question.ask(subject)
    return within(question.limit_s, lambda: question.ask(subject))


def _not_made(question: Question, sentence: str) -> Check:
    again = f"hangcheck doctor --only {question.group}"
    return Check(question.about, "warning", sentence, f"look at it by itself: {again}")


def _answer(question: Question, check: Check, seconds: float) -> Answer:
    """What is shown was read from files and variables of others: no secret, one line."""
    return Answer(
        group=question.group,
        check=check.name,
        status=check.status,
        looked_at=question.looked_at,
        found=one_line(redact_text(check.sentence)),
        why=question.why,
        remedy=redact_text(check.remedy),
        seconds=seconds,
        details=tuple(visible(redact_text(line)) for line in check.details),
    )


def _worst(statuses: Iterable[Status]) -> Status:
    order = get_args(Status)
    return max(statuses, key=order.index, default="warning")
