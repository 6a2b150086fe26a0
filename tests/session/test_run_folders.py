"""One folder, one job: of two jobs that name the same, the second keeps its run beside it."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from processes import until

from lightning_hangcheck.identity import identify
from lightning_hangcheck.rundir import RunFolder, claim_run_folder
from lightning_hangcheck.session.run_folders import settle_elsewhere, settle_run_folder
from lightning_hangcheck.session.session import Session, SessionFacts, open_session
from lightning_hangcheck.session.whose import job_key

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


def test_a_folder_that_hangcheck_run_took_is_no_other_jobs(
    node: Callable[[str, str], Session], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    claim_run_folder(
        RunFolder(tmp_path / "run"), b'{"run_id": "run", "command": "", "started_at": ""}'
    )
    assert settle_run_folder(node("host", "one")).folder.path != tmp_path / "run"


def stands_in(thread: threading.Thread, function: str) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - named so by its manual
    return function in [seen.f_code.co_name for seen, _ in traceback.walk_stack(frame)]


def test_a_claim_that_is_just_being_written_is_waited_for(
    node: Callable[[str, str], Session], tmp_path: Path
) -> None:
    claim = b'{"run_id": "run", "command": "", "started_at": "", "job": "one"}'
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes(claim[:20])
    found: list[Path] = []
    session = node("host", "one")
    looking = threading.Thread(target=lambda: found.append(settle_run_folder(session).folder.path))
    looking.start()
    until(lambda: stands_in(looking, "_take"), "it to look at half a claim")
    (tmp_path / "run" / "run.json").write_bytes(claim)
    looking.join(10.0)
    assert found == [tmp_path / "run"]


def test_where_not_even_beside_is_room_a_temporary_folder_serves(
    node: Callable[[str, str], Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "host"))
    session = node("host", "one")
    session = replace(session, facts=replace(session.facts, run_dir="/proc/self/run"))
    folder, trouble = settle_run_folder(session)
    assert folder.path.parent == tmp_path / "host"
    assert folder.path.name.startswith("hangcheck-run-")
    assert "/proc/self/run cannot be used" in trouble


def test_who_comes_second_takes_what_the_first_agreed_to_and_leaves_nothing(
    node: Callable[[str, str], Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "host"))
    session = node("host", "one")
    folder, _ = settle_run_folder(session)
    before = set((tmp_path / "host").iterdir())
    assert settle_elsewhere(session, TimeoutError("no answer")) == (folder, "")
    assert set((tmp_path / "host").iterdir()) == before


def test_nodes_that_lightning_is_started_on_by_hand_are_one_job() -> None:
    def job_on(node: str) -> str:
        environment = {"NODE_RANK": node, "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
        return job_key(environment, identify(environment))

    assert job_on("0") == job_on("1") == "plain-node0-29500"
    assert job_key({"MASTER_ADDR": "localhost"}, identify({})) != job_on("0")
