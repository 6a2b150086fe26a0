"""The run folder of the contract, and the journals in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.report.journals import journals_of_job, read_rank
from lightning_hangcheck.rundir import (
    RunFolder,
    claim_run_folder,
    find_run_folder,
    name_run_folder,
    prepare_run_folder,
)


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
    path = name_run_folder(None).path
    assert path.parent == tmp_path / "hangcheck_runs"
    assert re.fullmatch(r"20\d{6}T\d{6}-[0-9a-f]{4}", path.name)
    assert not path.exists()


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


def test_the_newest_run_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableRun, match="there is no run below"):
        find_run_folder(None)
    prepare_run_folder(RunFolder(tmp_path / "hangcheck_runs" / "one"))
    assert find_run_folder(None).run_id == "one"
    with pytest.raises(UnreadableRun, match="is no folder"):
        find_run_folder("two")


PID = 17


def write(folder: Path, rank: int, host: str, *starts: str) -> None:
    """A journal of so many processes, each with a start and a checkpoint; ids are equal."""
    run = prepare_run_folder(RunFolder(folder))
    run.run_file.write_text("{}")
    lines: list[dict[str, Any]] = []
    for at in starts:
        lines.append({"at": f"{at}:00.000000Z", "pid": PID, "kind": "start", "host": host})
        lines.append({"at": f"{at}:05.000000Z", "pid": PID, "kind": "checkpoint", "name": at})
    text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    run.journal(rank, PID).write_bytes(text)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Rank 0 was on host a, then on b, then on a; rank 1 on b in the first round alone."""
    write(tmp_path / "run", 0, "a", "2026-11-20T10:00", "2026-11-20T10:20")
    write(tmp_path / "run" / "node-b", 0, "b", "2026-11-20T10:10")
    write(tmp_path / "run" / "node-b", 1, "b", "2026-11-20T10:00")
    return tmp_path / "run"


def test_processes_of_a_rank_follow_each_other_whatever_node_they_were_on(job: Path) -> None:
    journals = journals_of_job(RunFolder(job))
    entries, gaps = read_rank(journals["rank-0"])
    assert gaps == ()
    starts = [(entry["host"], entry["at"][11:16]) for entry in entries if entry["kind"] == "start"]
    assert starts == [("a", "10:00"), ("b", "10:10"), ("a", "10:20")]
    assert [entry["host"] for entry in entries] == ["a", "a", "b", "b", "a", "a"]
    assert list(journals) == ["rank-0", "rank-1"]
