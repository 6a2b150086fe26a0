"""A rank that changed its node has one history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lightning_hangcheck.rundir.layout import RunFolder, prepare_run_folder
from lightning_hangcheck.rundir.rank_journals import (
    folders_of_job,
    journals_of_job,
    read_rank,
)

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize("named", ["", "node-b"])
def test_any_of_the_nodes_folders_leads_to_all(job: Path, named: str) -> None:
    folder = RunFolder(job / named)
    first, *_ = folders = folders_of_job(folder)
    assert first == folder
    assert {one.path for one in folders} == {job, job / "node-b"}
    assert list(journals_of_job(folder)) == ["rank-0", "rank-1"]


def test_a_folder_that_is_only_named_like_a_nodes_is_one_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "node-b", 0, "b", "2026-11-20T10:00")
    assert folders_of_job(RunFolder(tmp_path / "node-b")) == [RunFolder(tmp_path / "node-b")]


def test_a_journal_that_is_torn_costs_no_other(job: Path) -> None:
    torn = RunFolder(job / "node-b").journal(0, PID)
    torn.write_bytes(torn.read_bytes()[:-9])
    entries, (gap,) = read_rank(journals_of_job(RunFolder(job))["rank-0"])
    assert len(entries) == 5
    assert "1 of its lines are torn" in gap.why
