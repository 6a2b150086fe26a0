"""What is said of result files that are missing, empty, torn, old, or not what they should be."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from lightning_hangcheck.hooks import evaluation as results
from lightning_hangcheck.hooks.evaluation import Evaluation

if TYPE_CHECKING:
    from pathlib import Path

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
