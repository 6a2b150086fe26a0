"""What killed jobs left in shared memory goes; what may belong to a live one stays."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lightning_hangcheck.machine.which_machine import pid_namespace
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.session.housekeeping import (
    LEFT_BEHIND_AFTER_S,
    NAMESPACE_FILE,
    remove_left_behind,
)
from lightning_hangcheck.session.session import SessionFacts, SidecarFacts

if TYPE_CHECKING:
    from pathlib import Path


OURS = pid_namespace()


def session_of(sessions: Path, pid: int, age_s: float, namespace: str = OURS) -> Path:
    pages = sessions / f"of-{pid}" / "pages"
    pages.mkdir(parents=True)
    page = pages / f"{pid}.page"
    page.touch()
    (pages.parent / NAMESPACE_FILE).write_text(namespace)
    age(pages.parent, age_s)
    return pages.parent


def age(session: Path, age_s: float) -> None:
    then = time.time() - age_s
    for path in (*session.glob("pages/*"), session / "pages", session):
        os.utime(path, (then, then))


@pytest.fixture
def gone() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_an_old_session_of_processes_that_are_gone_is_removed(tmp_path: Path, gone: int) -> None:
    session = session_of(tmp_path, gone, LEFT_BEHIND_AFTER_S + 60)
    remove_left_behind(tmp_path)
    assert not session.exists()


def test_a_session_with_a_live_process_stays_however_old(tmp_path: Path) -> None:
    session = session_of(tmp_path, os.getpid(), LEFT_BEHIND_AFTER_S + 60)
    remove_left_behind(tmp_path)
    assert session.exists()


@pytest.mark.parametrize("keeper", ["root_pid", "sidecar"])
def test_a_session_whose_command_or_sidecar_is_there_stays_however_old(
    tmp_path: Path, gone: int, keeper: str
) -> None:
    """Ranks may come hours later; a clock that is set by hours makes all sessions old at once."""
    session = session_of(tmp_path, gone, LEFT_BEHIND_AFTER_S + 60)
    facts = SessionFacts(run_dir="/run", command="train", started_at="", root_pid=os.getpid())
    if keeper == "root_pid":
        (session / "session.json").write_bytes(encode(facts))
    else:
        (session / "session.json").write_bytes(encode(replace(facts, root_pid=gone)))
        sidecar = SidecarFacts(pid=os.getpid(), started_ticks=0)
        (session / "sidecar.json").write_bytes(encode(sidecar))
    age(session, LEFT_BEHIND_AFTER_S + 60)
    remove_left_behind(tmp_path)
    assert session.exists()


def test_an_old_session_whose_command_is_gone_too_is_removed(tmp_path: Path, gone: int) -> None:
    session = session_of(tmp_path, gone, LEFT_BEHIND_AFTER_S + 60)
    facts = SessionFacts(run_dir="/run", command="train", started_at="", root_pid=gone)
    (session / "session.json").write_bytes(encode(facts))
    age(session, LEFT_BEHIND_AFTER_S + 60)
    remove_left_behind(tmp_path)
    assert not session.exists()


def test_a_session_of_another_pid_namespace_stays(tmp_path: Path, gone: int) -> None:
    session = session_of(tmp_path, gone, LEFT_BEHIND_AFTER_S + 60, namespace="pid:[1]")
    remove_left_behind(tmp_path)
    assert session.exists()


def test_a_young_session_stays(tmp_path: Path, gone: int) -> None:
    session = session_of(tmp_path, gone, 60)
    remove_left_behind(tmp_path)
    assert session.exists()


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_left_behind(tmp_path / "none")
