"""`hangcheck report` on folders that cannot be used, or of which a part cannot be read."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from cli.commands.report.reported_run import AT, HANG, refused

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.model.case import Case, RankView, RunFacts
from lightning_hangcheck.model.codec import encode, encode_pretty

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightning_hangcheck.rundir import RunFolder


def test_nothing_to_report_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["report"]) == 2
    assert "there is no run below" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: folder.run_file.unlink(), "holds no run"),
        (lambda folder: shutil.rmtree(folder.path), "is no folder"),
        (lambda folder: _torn(folder.verdict_file), "verdict.json cannot be read"),
        (
            lambda folder: folder.verdict_file.write_text('{"schema_version": 2}'),
            "schema_version 2; this version reads 1",
        ),
        # a folder fails for every user, root too, where a file mode would not
        (lambda folder: folder.verdict_file.mkdir(), "cannot be read (Is a directory)"),
        (
            lambda folder: os.mkfifo(folder.verdict_file),
            "verdict.json cannot be read (it is a FIFO, not a file); remove it",
        ),
        (lambda folder: folder.run_file.write_text("[]"), "run.json cannot be read"),
    ],
)
def test_a_run_of_which_nothing_can_be_read_is_refused(
    make: Callable[[RunFolder], object],
    said: str,
    folder: RunFolder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(folder)
    assert said in refused(folder.path, capsys)


def _a_journal(folder: RunFolder) -> None:
    line = {"at": AT, "kind": "checkpoint", "number": 5, "name": "Model created"}
    folder.journal(0, 0).write_text(json.dumps(line) + "\n")


def _evidence(folder: RunFolder) -> None:
    facts = RunFacts(run_id="r", command="python train.py", started_at=AT)
    case = Case(run=facts, taken_at=AT, taken_ns=0, ranks=(RankView(rank=0, pid=7),))
    folder.evidence(1).mkdir()
    (folder.evidence(1) / "case.json").write_bytes(encode(case))


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    path.write_bytes(b"{")
    os.truncate(path, 1 << 40)


def _torn(path: Path) -> None:
    path.write_bytes(encode_pretty(HANG)[:100])


BAD = {"fifo": os.mkfifo, "endless": _endless, "huge": _huge, "torn": _torn}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_verdict_costs_no_journal(
    bad: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    BAD[bad](folder.verdict_file)
    _a_journal(folder)
    assert invoke(["report", str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("no verdict that can be read\n")
    assert "rank 0  CHECKPOINT 5: Model created" in shown
    assert "verdict.json cannot be read" in " ".join(shown.split())
    assert invoke(["report", "--json", str(folder.path)]) == 2
    assert "verdict.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["fifo", "endless", "huge"])
def test_a_bad_journal_costs_no_other(
    bad: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    BAD[bad](folder.journal(1, 0))
    _a_journal(folder)
    assert invoke(["report", str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert "CHECKPOINT 5: Model created" in shown
    assert "journal rank-1.jsonl: " in shown


@pytest.mark.parametrize("bad", ["fifo", "endless", "huge"])
def test_bad_evidence_costs_no_older(
    bad: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    _evidence(folder)
    folder.evidence(2).mkdir()
    BAD[bad](folder.evidence(2) / "case.json")
    assert invoke(["report", str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("HEALTHY")
    assert f"evidence 2 of {folder.path}" in " ".join(shown.split())


def test_a_page_of_a_torn_verdict_comes_from_its_evidence(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.verdict_file.write_bytes(encode_pretty(HANG)[:50])
    _evidence(folder)
    assert invoke(["report", str(folder.path), "--html", "-"]) == 0
    assert "verdict.json cannot be read" in capsys.readouterr().out
