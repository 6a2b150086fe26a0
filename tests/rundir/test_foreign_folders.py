"""The run folder: its layout, and what a foreign one does."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.files import open_for_append, write_atomically
from lightning_hangcheck.report.journals import journals_of_job, read_rank
from lightning_hangcheck.rundir import (
    RunFolder,
    claim_run_folder,
    find_run_folder,
    name_run_folder,
    prepare_run_folder,
)
from lightning_hangcheck.session import session as session_module
from lightning_hangcheck.session.session import (
    SessionFacts,
    open_session,
    session_folder,
    sessions_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


# What somebody else made, or may write, is not written to; what is ours becomes ours alone.

NOBODY = 65534
OURS = f"hangcheck-{os.getuid()}"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user too")


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of shared memory, which everybody may write."""
    monkeypatch.setattr(session_module, "SHARED_MEMORY", tmp_path)
    tmp_path.chmod(0o1777)
    return tmp_path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def link(path: Path) -> None:
    path.with_name("target").mkdir()
    path.symlink_to(path.with_name("target"))


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def others_folder(path: Path) -> None:
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    os.chown(path, NOBODY, NOBODY)


PLANTED = [link, link_to_nothing, pytest.param(others_folder, marks=needs_root)]


def test_an_open_run_folder_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    (run.path / "ranks").mkdir(parents=True)
    for folder in (run.path, run.path / "ranks"):
        folder.chmod(0o777)
    prepare_run_folder(run)
    assert {mode_of(run.path), mode_of(run.path / "ranks")} == {0o700}


def test_a_folder_that_serves_others_too_keeps_its_mode_and_takes_no_run_if_they_may_write(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o755)
    (logs / "mine.txt").touch()
    prepare_run_folder(RunFolder(logs))
    assert mode_of(logs) == 0o755
    assert mode_of(logs / "ranks") == 0o700
    logs.chmod(0o775)
    with pytest.raises(UnpreparedRunFolder, match="others may write there"):
        prepare_run_folder(RunFolder(logs))
    assert mode_of(logs) == 0o775
    empty = tmp_path / "like-tmp"
    empty.mkdir()
    empty.chmod(0o1777)
    with pytest.raises(UnpreparedRunFolder, match="others may write there"):
        prepare_run_folder(RunFolder(empty))
    assert mode_of(empty) == 0o777 | stat.S_ISVTX


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("place", ["run", "run/ranks"])
def test_a_planted_folder_takes_no_run(
    place: str, plant: Callable[[Path], None], tmp_path: Path
) -> None:
    planted = tmp_path / place
    planted.parent.mkdir(exist_ok=True)
    plant(planted)
    with pytest.raises(UnpreparedRunFolder, match=r"it is a link|belongs to user id 65534"):
        prepare_run_folder(RunFolder(tmp_path / "run"))
    assert not planted.exists() or list(planted.iterdir()) == []


def test_a_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("mine")
    path = tmp_path / "verdict.json"
    path.symlink_to(private)
    write_atomically(path, b"ours")
    assert path.read_bytes() == b"ours"
    assert not path.is_symlink()
    path.unlink()
    path.symlink_to(private)
    with pytest.raises(OSError, match="symbolic links"):
        open_for_append(path)
    path.unlink()
    path.hardlink_to(private)
    with pytest.raises(PermissionError, match="no file of its own"):
        open_for_append(path)
    assert private.read_text() == "mine"


@needs_root
def test_a_file_of_another_user_is_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.touch()
    os.close(open_for_append(path))
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match="belongs to user id 65534"):
        open_for_append(path)
    os.chown(tmp_path, NOBODY, NOBODY)  # a network disk that knows us by that number
    os.close(open_for_append(path))


@pytest.mark.parametrize("plant", PLANTED)
def test_sessions_go_where_nobody_else_was(plant: Callable[[Path], None], memory: Path) -> None:
    plant(memory / OURS)
    facts = SessionFacts(run_dir="/runs/one", command="", started_at="", root_pid=1)
    session = open_session(session_folder("key"), facts)
    assert session.path == memory / f"{OURS}-1" / "key"
    assert sessions_folder() == session.path.parent


def test_sessions_stay_together_when_the_name_becomes_free(memory: Path) -> None:
    link_to_nothing(memory / OURS)
    facts = SessionFacts(run_dir="/runs/one", command="", started_at="", root_pid=1)
    session = open_session(session_folder("key"), facts)
    (memory / OURS).unlink()
    assert session_folder("key") == session.path


@needs_root
def test_another_users_sessions_are_found_behind_the_name_that_somebody_took(memory: Path) -> None:
    (memory / f"hangcheck-{NOBODY}").mkdir()
    theirs = memory / f"hangcheck-{NOBODY}-1"
    others_folder(theirs)
    assert sessions_folder(NOBODY) == theirs
