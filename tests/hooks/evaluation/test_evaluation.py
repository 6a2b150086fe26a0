"""Evaluation on rank 0: in turn, out of turn, failing, late; and what is said of its files."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from hooks.launching import OFFLINE, TORCHRUN, run_job

import lightning_hangcheck as hc
from lightning_hangcheck.errors import BadUsage, StepOutOfTurn
from lightning_hangcheck.hooks import evaluation as results
from lightning_hangcheck.hooks.evaluation import Evaluation

if TYPE_CHECKING:
    from pathlib import Path

WRONG = {
    "again": ("StepOutOfTurn", "again: step 1 came again (on rank 0)"),
    "apart": ("StepOutOfTurn", "step 4 came after step 1, and steps 2-3 are left out (on rank 1)"),
    "failing": ("MeetingFailed", "'failing at step 2' after"),
    "lost": ("MeetingFailed", "step_2.csv is not there"),
    "late": ("MeetingFailed", "did not finish 'late at step 0' within 2 s"),
}


@pytest.mark.real
def test_rank_zero_evaluates_and_the_other_goes_on_when_it_is_done(tmp_path: Path) -> None:
    """Two ranks that evaluate well, and then in each way that is wrong, which both raise alike."""
    how = ("well", *WRONG)
    job = run_job(tmp_path, "hooks_evaluation.py", *how, launcher=TORCHRUN, environment=OFFLINE)
    assert job.code == 0, job.errors
    for step in ("0", "1", "2", "final"):
        said = job.of(f"after {step}")
        assert [said[rank]["needed"] for rank in (0, 1)] == [True, False]
        assert said[1]["there"], "rank 1 went on before the results were there"
    assert [said["total"] for said in job.of("sum").values()] == [8.0, 8.0]
    assert "About to call well at step 2..." in job.errors
    assert "About to call wait for rank 0: well at step 2..." in job.errors
    assert "1 result of step final as expected; steps 0, 1, 2, final there" in job.errors
    for wrong, (kind, words) in WRONG.items():
        failed = job.of(f"failed {wrong}")
        assert [failed[rank]["kind"] for rank in (0, 1)] == [kind, kind]
        assert failed[0]["error"].splitlines()[0] == failed[1]["error"].splitlines()[0]
        assert words in failed[0]["error"]


def alone(step: int | str, name: str, **named: object) -> hc.rank_zero_evaluation:
    return hc.rank_zero_evaluation(step, 30.0, name=name, **named)


@pytest.mark.parametrize(("begin", "first"), [(0, None), (1, 3)])
def test_alone_a_process_evaluates_at_the_steps_that_are_due(begin: int, first: int | None) -> None:
    """Steps before the first evaluation are nothing to refuse."""
    for step in range(begin, 7):
        with alone(step, f"due from {begin}", every=3, first=first) as evaluation:
            assert evaluation.needed == (step in (0, 3, 6))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((0, 1, 1), "step 1 came again;"),
        ((0, 2), "step 2 came after step 0, and step 1 is left out"),
        ((2, 1), "step 1 came after step 2, which is later"),
        (("final", 3), "step 3 came after step final"),
        ((100, 200, 400), "step 400 came after step 200, and step 300 is left out"),
    ],
)
def test_a_step_out_of_turn_is_refused(steps: tuple[int | str, ...], words: str) -> None:
    *before, last = steps
    every = 100 if 100 in steps else 1
    for step in before:
        with alone(step, str(steps), every=every):
            pass
    with pytest.raises(StepOutOfTurn, match=words), alone(last, str(steps), every=every):
        pytest.fail("its body ran")


@pytest.mark.parametrize(
    "named",
    [
        {"every": 0},
        {"every": 2.0},
        {"first": 6, "every": 2},
        {"first": 1, "every": 2},
        {"first": -1},
        *({"step": step} for step in (-1, True, 1.5, "last", None)),
    ],
)
def test_numbers_that_mean_nothing_are_refused(named: dict[str, Any]) -> None:
    with pytest.raises(BadUsage), alone(**{"step": 4, "name": "numbers", **named}):
        pytest.fail("its body ran")


# What is said of result files that are missing, empty, torn, old, or not what they should be.

SCORES = "name,score\na,0.5\nb,0.7\n"


def complaints(
    path: Path, step: int | str = 1, so_far: tuple[int | str, ...] = (), **expected: Any
) -> list[str]:
    evaluation = Evaluation(step, needed=True)
    evaluation.expect(path, **expected)
    return evaluation.complaints(so_far)


def said(path: Path, text: str | None = SCORES, **expected: Any) -> str:
    if text is not None:
        path.write_text(text)
    return "; ".join(complaints(path, **expected))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scores.csv", SCORES),
        ("scores.csv", 'name,score\n"a,\nb",0.5\n\n"c""",0.7\n'),
        ("scores.tsv", SCORES.replace(",", "\t")),
        ("scores.jsonl", '{"name": "a", "score": 1}\n\n{"name": "b", "score": 2}\n'),
        ("scores.json", '[{"name": "a", "score": 1}, {"name": "b", "score": 2}]'),
    ],
)
def test_a_file_with_its_rows_and_columns_is_right(tmp_path: Path, name: str, text: str) -> None:
    assert said(tmp_path / name, text, rows=2, columns=("score", "name")) == ""
    assert said(tmp_path / "none.csv", "name,score\n", rows=0) == ""
    assert said(tmp_path / name, text, columns="score") == "", "one column is no list of letters"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("scores.csv", None, "is not there"),
        ("scores.csv", "", "is empty"),
        ("scores.csv", "name,score\n", "has no rows"),
        ("scores.csv", SCORES + SCORES[11:], "has 4 rows, not 2"),
        ("scores.csv", "name,points\na,1\nb,2\n", "lacks column score (it has name, points)"),
        ("scores.csv", "name,score\na,1\nb", "row 2 has 1 of 2 cells: it was not written to its"),
        ("scores.jsonl", '{"name": "a", "score": 1}\n{"name": "b"}\n', "row 2 lacks column score"),
        ("scores.jsonl", '{"name": "a", "score": 1}\n{"na', "row 2 cannot be read"),
    ],
)
def test_a_file_that_is_not_as_expected_says_why(
    tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    found = said(tmp_path / name, text, rows=2, columns=("name", "score"))
    assert found.startswith(str(tmp_path / name))
    assert words in found


def test_a_file_that_an_earlier_run_left_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(SCORES)
    earlier = time.time() - 720
    os.utime(path, (earlier, earlier))
    assert "was last written 12 min" in said(path, None)


def test_a_storage_that_does_not_answer_is_not_asked_for_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "READ_LIMIT_S", 0.2)
    os.mkfifo(tmp_path / "step_3.csv")
    (found,) = complaints(tmp_path / "step_{step}.csv", 3, (1, 2, 3), rows=2)
    assert found == f"{tmp_path}/step_3.csv is not read: no answer within 0.2 s"
    os.close(os.open(tmp_path / "step_3.csv", os.O_WRONLY | os.O_NONBLOCK))  # frees the reader
