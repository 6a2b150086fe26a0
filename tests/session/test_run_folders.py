"""One folder, one job: of two jobs that name the same, the second keeps its run beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.rundir import RunFolder
from lightning_hangcheck.session.run_folders import settle_run_folder
from lightning_hangcheck.session.session import Session, SessionFacts, open_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def node(tmp_path: Path) -> Callable[[str, str], Session]:
    """Open the session of a job on a node; all name the same run folder."""

    def open_one(host: str, job: str) -> Session:
        facts = SessionFacts(
            run_dir=str(tmp_path / "run"), command="train", started_at="", root_pid=1, job=job
        )
        return open_session(tmp_path / host / job, facts)

    return open_one


def test_a_second_job_is_kept_beside_the_first_and_says_so_once(
    node: Callable[[str, str], Session], tmp_path: Path
) -> None:
    first, second = node("host", "one"), node("host", "two")
    assert settle_run_folder(first) == (RunFolder(tmp_path / "run"), "")
    folder, trouble = settle_run_folder(second)
    assert folder.path.parent == tmp_path
    assert folder.path.name.startswith("run-")
    assert "already holds a run" in trouble
    assert str(folder.path) in trouble
    assert settle_run_folder(second) == (folder, "")
    assert second.run_folder == folder
    assert json.loads((tmp_path / "run" / "run.json").read_text())["job"] == "one"


def test_all_nodes_of_a_job_share_its_folder_also_beside_another(
    node: Callable[[str, str], Session], tmp_path: Path
) -> None:
    assert settle_run_folder(node("a", "one")).folder.path == tmp_path / "run"
    assert settle_run_folder(node("b", "one")).folder.path == tmp_path / "run"
    beside = {settle_run_folder(node(host, "two")).folder.path for host in "ab"}
    assert len(beside) == 1


def test_where_not_even_beside_is_room_a_temporary_folder_serves(
    node: Callable[[str, str], Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "host"))
    session = node("host", "one")
    session = session._replace(facts=session.facts._replace(run_dir="/proc/self/run"))
    folder, trouble = settle_run_folder(session)
    assert folder.path.parent == tmp_path / "host"
    assert folder.path.name.startswith("hangcheck-run-")
    assert "run folder /proc/self/run cannot be made" in trouble
