"""Stacks that somebody took of a job that is gone, beside its flight records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from postmortem.dumps import did, dump, write

from lightning_hangcheck.cli.main import invoke

if TYPE_CHECKING:
    from pathlib import Path

WORLD = {"0": [0, 1, 2, 3]}
LOADER = """Process 700: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 700 (idle): "MainThread"
    wait (threading.py:331)
    get (queue.py:180)
    _try_get_data (torch/utils/data/dataloader.py:1295)
    __next__ (torch/utils/data/dataloader.py:741)
    fit (/home/ada/demo/train.py:41)
    <module> (/home/ada/demo/train.py:90)
"""


def records_without(rank: int, folder: Path) -> None:
    """Leave the dumps of a job of four ranks, of which one has not entered the last operation."""
    for number in WORLD["0"]:
        entries = [did(6, ended=True), did(7)][: 1 if number == rank else 2]
        write(folder / "dumps", {f"rank_{number}": dump(number, *entries, groups=WORLD)})


def answer(capsys: pytest.CaptureFixture[str], *paths: Path | str) -> dict[str, object]:
    code = invoke(["postmortem", *map(str, paths), "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    assert code == (0 if found["verdict"] in ("healthy", "finished") else 3)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_line_comes_from_a_stack_that_somebody_took(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records_without(3, here)
    (here / "rank3.txt").write_text(LOADER)
    found = answer(capsys, here)
    assert (found["culprits"], found["certainty"]) == ([3], "proven")
    assert "train.py:41" in str(found["summary"])


def test_a_stack_alone_tells_no_duration(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rank0.txt").write_text(LOADER)
    found = answer(capsys, "rank0.txt")
    assert (found["culprits"], found["cause"]) == ([0], "dataloader_worker")
    assert "an unknown time" in str(found["summary"])


def test_a_stack_of_an_unnamed_rank_is_left_out_with_the_way_to_name_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records_without(2, here)
    (here / "stack.txt").write_text(LOADER)
    assert invoke(["postmortem", "."]) == 3
    assert "put the rank into the file's name" in " ".join(capsys.readouterr().out.split())
