"""The run folder of the contract."""

from __future__ import annotations

import re
import stat
from datetime import datetime, timezone
from pathlib import Path

import pytest

from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.rundir.layout import (
    RunFolder,
    claim_run_folder,
    find_run_folder,
    name_run_folder,
    prepare_run_folder,
)

NOON = datetime(2026, 11, 20, 12, 0, 1, tzinfo=timezone.utc)


def test_files_lie_where_the_contract_says() -> None:
    folder = RunFolder(Path("/runs/one"))
    assert folder.run_id == "one"
    assert folder.run_file == Path("/runs/one/run.json")
    assert folder.verdict_file == Path("/runs/one/verdict.json")
    assert folder.journal(3, 17) == Path("/runs/one/ranks/rank-3.jsonl")
    assert folder.journal(None, 17) == Path("/runs/one/ranks/pid-17.jsonl")
    assert folder.numbered_verdict(2) == Path("/runs/one/verdicts/2.json")
    assert folder.evidence(2) == Path("/runs/one/evidence/2")


def test_a_run_is_named_by_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = name_run_folder(None, NOON).path
    assert path.parent == tmp_path / "hangcheck_runs"
    assert re.fullmatch(r"20261120T120001-[0-9a-f]{4}", path.name)
    assert not path.exists()


def test_a_named_folder_is_exactly_that(tmp_path: Path) -> None:
    assert name_run_folder(str(tmp_path / "mine"), NOON).path == tmp_path / "mine"


def test_a_prepared_folder_is_private_and_may_be_prepared_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    prepare_run_folder(folder)
    prepare_run_folder(folder)
    assert {path.name for path in folder.path.iterdir()} == {"ranks", "verdicts", "evidence"}
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnpreparedRunFolder, match=r"cannot be made .*--run-dir"):
        prepare_run_folder(RunFolder(tmp_path / "file" / "run"))


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    claim_run_folder(folder, b"first")
    with pytest.raises(UsedRunFolder, match="already holds a run"):
        claim_run_folder(folder, b"second")
    assert folder.run_file.read_bytes() == b"first"


def test_verdicts_are_counted_by_number(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.verdict_numbers() == []
    prepare_run_folder(folder)
    for name in ("1.json", "10.json", "2.json", ".2.json.99", "notes.txt"):
        (tmp_path / "verdicts" / name).touch()
    assert folder.verdict_numbers() == [1, 2, 10]


def test_the_newest_run_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableRun, match="there is no run below"):
        find_run_folder(None)
    prepare_run_folder(RunFolder(tmp_path / "hangcheck_runs" / "one"))
    assert find_run_folder(None).run_id == "one"
    with pytest.raises(UnreadableRun, match="is no folder"):
        find_run_folder("two")
