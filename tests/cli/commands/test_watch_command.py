"""`hangcheck watch` on folders as runs leave them, and on folders that cannot be used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import RankState, StackGroup, Verdict
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder

if TYPE_CHECKING:
    from pathlib import Path

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


def test_4096_ranks_are_a_handful_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ended_run(tmp_path / "run", 4096)
    group = StackGroup(id=0, process="rank", ranks="0-6,8-4095", count=4095, frames=())
    verdict = Verdict(
        verdict="hang",
        run_id="r",
        command="c",
        started_at=AT,
        detected_at=AT,
        world_size=4096,
        culprits=(7,),
        ranks=(
            RankState(rank=7, state="stalled"),
            RankState(rank=0, state="waiting", stack_group=0),
        ),
        stack_groups=(group,),
    )
    folder.verdict_file.write_bytes(encode(verdict))
    lines = shown(folder, capsys)
    assert lines[0].startswith("HANG  ")
    assert [line.split()[:2] for line in lines[5:7]] == [["7", "stuck"], ["0-6,8-4095", "waits"]]
    assert len(lines) == 8


def test_a_verdict_of_a_newer_version_is_named_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ended_run(tmp_path / "run", 1)
    folder.journal(0, 1).write_text('{"kind": "start"}\n')
    folder.verdict_file.write_text('{"schema_version": 7}')
    lines = shown(folder, capsys)
    assert "has schema_version 7; this version reads 1" in " ".join(" ".join(lines).split())
    assert any(line.startswith("0     ended") for line in lines)


@pytest.mark.parametrize(
    ("content", "why", "way_out"),
    [
        (None, "is no folder", "name the folder that the run printed"),
        ({}, "holds no run", "name the folder that hangcheck run printed"),
        (
            {"verdict.json": '{"schema_version": 7}'},
            "has schema_version 7; this version reads 1",
            "install the lightning-hangcheck that wrote it, or a newer one",
        ),
        ({"verdict.json": '{"schema'}, "cannot be read", "name another run folder, or run again"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_line(
    content: dict[str, str] | None,
    why: str,
    way_out: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    if content is not None:
        folder.mkdir(mode=0o700)
        for name, text in content.items():
            (folder / name).write_text(text)
    assert invoke(["watch", str(folder)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert why in output.err
    assert output.err.endswith(f"; {way_out}\n")


def test_without_any_run_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["watch"]) == 2
    assert "name a run folder, or start one: hangcheck run" in capsys.readouterr().err
