"""A rank that is slow and does not hang: named as it becomes so, at the end, and in the logs."""

from __future__ import annotations

import csv
from threading import Thread
from typing import IO, TYPE_CHECKING

import msgspec
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, PROGRAMS, end, until
from watch.launched import run, start_run

from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.report.saved_run import read_saved_run
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
TORCHRUN = ("torchrun", "--nproc_per_node=2")


def test_a_rank_whose_loader_is_slow_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, [*TORCHRUN, str(PROGRAMS / "straggling.py"), "csv"])
    assert ended.returncode == 0, ended.stderr
    finished, steps, where, _trend = ended.stderr.splitlines()[-4:]
    assert finished.startswith("FINISHED")
    assert "slowest is rank 1: " in steps
    assert "rank 1: loader " in where
    kept = read_saved_run(RunFolder(tmp_path / "run")).case
    assert stragglers_lines(find_stragglers(kept))[0] == steps
    (logged,) = tmp_path.glob("logged/**/metrics.csv")
    with logged.open() as file:
        rows = [row for row in csv.DictReader(file) if row["hangcheck/step_time"]]
    assert len(rows) >= 3, "every fourth of 32 steps, but for the first"
    assert {row["hangcheck/slowest_rank"] for row in rows} == {"1"}
    assert {row["hangcheck/state"] for row in rows} == {"0"}
    assert all(float(row["hangcheck/straggler_ratio"]) > 1.0 for row in rows)
    assert all(float(row["hangcheck/step_time"]) >= 0.3 for row in rows)


@WHEN_ASKED_FOR
@pytest.mark.parametrize(
    ("program", "where"),
    [
        ("losing_pace.py", "most in loader: 0.2"),
        ("losing_pace_plainly.py", "seen in prepare (programs/losing_pace_plainly.py:"),
    ],
    ids=["lightning", "plain"],
)
def test_a_rank_that_loses_its_pace_is_told_once_and_so_is_its_return(
    tmp_path: Path, program: str, where: str
) -> None:
    """Rank 1 takes ten times as long for its batches while a file is there."""
    options = ("--slow-after", "2", "--set", "poll_interval=0.1", "--prometheus", "job.prom")
    command = [*TORCHRUN, str(PROGRAMS / program)]
    process = start_run(tmp_path, command, *options, "--on-hang", "abort")
    said, steps = _follow(process.stderr), _follow(process.stdout)
    try:
        usual = '"step": 500'
        until(lambda: any(usual in line for line in list(steps)), "500 usual steps", PATIENCE_S)
        (tmp_path / "slow").touch()
        slow = until(lambda: _told(said, "SLOW"), "the line on the slow rank", PATIENCE_S)
        assert 'hangcheck_state{run="run"} 0' in (tmp_path / "job.prom").read_text()
        (tmp_path / "slow").unlink()
        until(lambda: _told(said, "RECOVERED"), "the line on its return", PATIENCE_S)
        (tmp_path / "enough").touch()
        assert process.wait(PATIENCE_S) == 0
    finally:
        end(process)
    assert "rank 1 has been slow for" in slow
    assert where in slow
    assert "rank 0 waits for it" in slow
    kinds = [_verdict(tmp_path, number) for number in (1, 2, 3)]
    assert [one.verdict for one in kinds] == ["slow", "recovered", "finished"]
    assert [(one.culprits, one.victims) for one in kinds[:2]] == [((1,), (0,))] * 2


def _follow(pipe: IO[str] | None) -> list[str]:
    """Lines as they come."""
    lines: list[str] = []
    assert pipe is not None
    Thread(target=_read, args=(pipe, lines), daemon=True).start()
    return lines


def _read(pipe: IO[str], lines: list[str]) -> None:
    for line in pipe:
        lines.append(line)  # noqa: PERF402 - others look at it meanwhile


def _told(said: list[str], kind: str) -> str:
    return next((line for line in list(said) if line.startswith(kind)), "")


def _verdict(folder: Path, number: int) -> Verdict:
    saved = (folder / "run" / "verdicts" / f"{number}.json").read_bytes()
    return msgspec.json.decode(saved, type=Verdict)
