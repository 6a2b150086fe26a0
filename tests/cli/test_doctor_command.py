"""`hangcheck doctor` as it is typed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.cli.main import invoke

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.doctor.examination import Answer


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and an environment in which nothing is wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("RANK", "WORLD_SIZE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)


def _answers(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[Answer]]:
    code = invoke(["doctor", "--json", *words])
    return code, json.loads(capsys.readouterr().out)["answers"]


def test_only_the_named_groups_are_asked(capsys: pytest.CaptureFixture[str]) -> None:
    _, answers = _answers(capsys, "--only", "environment", "--only", "launch")
    assert {answer["group"] for answer in answers} == {"environment", "launch"}  # type: ignore[index]


def test_a_failed_check_gives_two(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, answers = _answers(capsys, "--only", "launch", "--", "python", "train.py")
    assert code == 2
    assert any("RANK=3" in answer["found"] for answer in answers)  # type: ignore[index]


def test_where_nothing_was_checked_nothing_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "--only", "data"]) == 1
    assert capsys.readouterr().out.startswith("nothing was checked: ")
