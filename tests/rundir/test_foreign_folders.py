"""What somebody else made, or may write, is not written to; what is ours becomes ours alone."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.files import open_for_append, write_atomically
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder
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
