"""Checks side by side: the worst counts, what fails or blocks costs nobody else his answer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor import data_checks, launch_checks, ranks_checks, storage_checks
from lightning_hangcheck.doctor.check import GROUPS, Check, Finding, failed, ok, warning
from lightning_hangcheck.doctor.examination import checks_of, examine, render

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.doctor.check import Subject

KEY = "hf_" + "a" * 30


def _check(finding: Finding | None) -> Check:
    return Check("group", "name", "looked", "matters", lambda _: finding)


WELL = _check(ok("fine", "good"))
WARNED = _check(warning(f"{KEY} was seen", "do: something", check="doubtful"))
FAILED = _check(failed("broken", "mend: it", check="bad"))


def test_the_exit_code_is_that_of_the_worst() -> None:
    assert examine(subject(), [WELL]).exit_code == 0
    assert examine(subject(), [WELL, WARNED]).exit_code == 1
    assert examine(subject(), [WARNED, FAILED, WELL]).exit_code == 2


def test_a_check_that_raises_is_a_warning_and_the_others_are_made() -> None:
    def breaks(_: Subject) -> tuple[Finding, ...]:
        raise KeyError("unforeseen")

    found = examine(subject(), [Check("group", "broken", "", "", breaks), WELL])
    assert [(one.check, one.status) for one in found.answers] == [
        ("broken", "warning"),
        ("good", "ok"),
    ]
    assert "unforeseen" in found.answers[0].found


def test_checks_that_never_answer_are_given_up_side_by_side() -> None:
    reader, writer = os.pipe()

    def blocks(_: Subject) -> tuple[Finding, ...]:
        os.read(reader, 1)
        return ()

    found = examine(subject(), [Check("group", "late", "", "", blocks, limit_s=0.2)] * 4)
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
    text = render(examine(subject(), [_check(failed("found", command))]))
    assert command.strip() in text


def test_every_check_says_what_it_looks_at_and_why() -> None:
    assert {check.group for check in checks_of()} == set(GROUPS)
    for check in checks_of():
        assert check.looked_at, check.name
        assert check.why, check.name


@pytest.mark.parametrize(
    "check",
    [
        *(data_checks.needed_files, data_checks.files_belong_together, data_checks.model_fits),
        *(
            storage_checks.checkpoints,
            storage_checks.writing_checkpoints,
            storage_checks.rclone_remotes,
        ),
        *(launch_checks.master_address, launch_checks.master_port, launch_checks.time_left),
        ranks_checks.ranks_start,
    ],
)
def test_what_the_run_does_not_name_is_not_asked_about(check: Check, tmp_path: Path) -> None:
    assert check(subject("python train.py", HOME=str(tmp_path))) == ()
