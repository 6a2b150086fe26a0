"""Checks side by side: the worst counts, what fails or blocks costs nobody else his answer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from subjects import subject

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.examination import examine
from lightning_hangcheck.doctor.examination_text import render
from lightning_hangcheck.doctor.groups import QUESTIONS
from lightning_hangcheck.doctor.question import GROUPS, Question

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

KEY = "hf_" + "a" * 30


def _question(check: Check | None, **others: object) -> Question:
    answer = () if check is None else (check,)
    return Question("group", "name", "looked", "matters", lambda _: answer, **others)  # type: ignore[arg-type]


WELL = _question(Check("good", "ok", "fine"))
WARNED = _question(Check("doubtful", "warning", f"{KEY} was seen", "do: something"))
FAILED = _question(Check("bad", "failed", "broken", "mend: it"))


def test_the_exit_code_is_that_of_the_worst() -> None:
    assert examine(subject(), [WELL]).exit_code == 0
    assert examine(subject(), [WELL, WARNED]).exit_code == 1
    assert examine(subject(), [WARNED, FAILED, WELL]).exit_code == 2


def test_a_question_that_does_not_arise_has_no_answer() -> None:
    assert examine(subject(), [_question(None)]).answers == ()


def test_a_check_that_raises_is_a_warning_and_the_others_are_made() -> None:
    def breaks(_: Subject) -> tuple[Check, ...]:
        raise KeyError("unforeseen")

    found = examine(subject(), [Question("group", "broken", "", "", breaks), WELL])
    assert [(one.check, one.status) for one in found.answers] == [
        ("broken", "warning"),
        ("good", "ok"),
    ]
    assert "unforeseen" in found.answers[0].found


def test_checks_that_never_answer_are_given_up_side_by_side() -> None:
    reader, writer = os.pipe()

    def blocks(_: Subject) -> tuple[Check, ...]:
        os.read(reader, 1)
        return ()

    found = examine(subject(), [Question("group", "late", "", "", blocks, limit_s=0.2)] * 4)
    assert [one.status for one in found.answers] == ["warning"] * 4
    os.write(writer, b"four")


def test_the_text_says_why_and_what_to_do_only_where_something_is_wrong() -> None:
    text = render(examine(subject(), [WELL, WARNED, FAILED]))
    assert text.startswith("1 failed, 1 warning: 3 checks in ")
    assert text.count("matters") == 2
    assert "mend: it" in text
    assert KEY not in text


def test_a_remedy_stays_on_one_line_to_be_copied() -> None:
    command = "export " + "A_LONG_VARIABLE=some/long/value " * 8
    text = render(examine(subject(), [_question(Check("x", "failed", "found", command))]))
    assert command.strip() in text


def test_every_question_says_what_it_looks_at_and_why() -> None:
    assert len(GROUPS) >= 3
    for question in QUESTIONS:
        assert question.looked_at, question.about
        assert question.why, question.about
