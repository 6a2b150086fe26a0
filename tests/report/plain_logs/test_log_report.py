"""`hangcheck report --log` on logs as runs leave them, and on files that are none."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.report.plain_logs.rank_ends import ends_of
from lightning_hangcheck.report.plain_logs.reading import LONGEST_LINE

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import lightning_hangcheck as hc
hc.checkpoint("Script started")
with hc.section("tokenizer"):
    hc.checkpoint("Tokenizer loaded")
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What two processes, told their ranks by the launcher's variables, really wrote."""
    file = tmp_path / "slurm-4711.out"
    with file.open("wb") as stream:
        for rank in ("0", "1"):
            program = PROGRAM if rank == "0" else PROGRAM.split("with")[0]
            environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
            subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                stderr=stream,
                check=True,
                timeout=120,
            )
    return file


def test_the_rank_that_is_behind_is_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["report", "--log", str(log)]) == 0

    said = capsys.readouterr().out
    assert said.startswith("logs of 2 of 2 ranks, last written ")
    assert "rank 1 passed CHECKPOINT 1: Script started, rank 0 came to CHECKPOINT 2" in " ".join(
        said.split()
    )
    assert len(said.splitlines()) <= 40


@pytest.mark.parametrize(
    ("arguments", "clear"),
    [
        (["--log"], "no log is named"),
        (["--log", "--json", "a.log"], "one form at a time"),
        (["--log", "absent.log"], "absent.log cannot be read (No such file or directory)"),
        (["a", "b"], "report takes one run folder"),
    ],
)
def test_bad_usage_is_one_clear_line(
    arguments: list[str], clear: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["report", *arguments]) == 2

    error = capsys.readouterr().err
    assert clear in error
    assert error.count("\n") == 1


def test_a_log_of_something_else_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.log"
    file.write_bytes(b"\x00\xff epoch 3 of 5\n" * 3 + b"x" * (2 * LONGEST_LINE))

    assert invoke(["report", "--log", str(file)]) == 2

    assert "no line of a rank is in these logs" in capsys.readouterr().err


def test_a_hostile_name_does_nothing_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hostile.log"
    file.write_text("[10:23:45.123][+2.456s][R0/1][LR0][PID:5] CHECKPOINT 1: \x1b[2J\u202eevil\n")

    assert invoke(["report", "--log", str(file)]) == 0

    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said


@given(st.lists(st.text(max_size=200), max_size=20))
def test_no_text_is_too_strange(lines: list[str]) -> None:
    assert ends_of([lines]).ranks is not None
