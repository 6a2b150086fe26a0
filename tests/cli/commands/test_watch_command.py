"""`hangcheck watch` on folders as runs leave them, and on folders that cannot be used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

AT = "2026-11-20T10:24:16.000Z"


def ended_run(path: Path, world_size: int) -> RunFolder:
    folder = prepare_run_folder(RunFolder(path))
    record = RunRecord(
        run_id="r",
        command="python train.py",
        started_at=AT,
        world_size=world_size,
        ended_at=AT,
        exit_code=0,
    )
    folder.run_file.write_bytes(encode(record))
    return folder


def shown(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert invoke(["watch", str(folder.path)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out.splitlines()


def test_a_run_without_a_verdict_is_shown_by_its_journals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ended_run(tmp_path / "run", 1)
    entry = {"kind": "checkpoint", "number": 12, "name": "Training finished", "at": AT}
    folder.journal(0, 1).write_text(json.dumps(entry) + "\n")
    lines = shown(folder, capsys)
    assert lines[0] == "no verdict yet"
    assert lines[1].endswith("the run has ended after <1 ms, exit code 0")
    assert lines[5].startswith("0     ended  12: Training finished")


def test_without_any_run_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["watch"]) == 2
    assert "name a run folder, or start one: hangcheck run" in capsys.readouterr().err
