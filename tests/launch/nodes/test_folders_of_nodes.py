"""One --run-dir that all nodes of a job are given, and what each of them makes of it."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lightning_hangcheck.errors import UsedRunFolder
from lightning_hangcheck.files import write_atomically
from lightning_hangcheck.identity import identify
from lightning_hangcheck.launch.run import take_run_folder
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.report.journals import folders_of_nodes
from lightning_hangcheck.session.session import join_session

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.rundir import RunFolder


RECORD = RunRecord(run_id="", command="torchrun", started_at="2026-11-20T10:00:00Z")
NAMED = replace(RECORD, job="nodes--n0-29400")
SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}


def test_the_first_node_takes_it_and_others_a_folder_below(tmp_path: Path) -> None:
    shared = tmp_path / "run"
    for number in (10, 2, 0):
        take_run_folder(str(shared), RECORD, number)
    first = take_run_folder(None, RECORD, 2)
    assert first.path.parent.name == "hangcheck_runs"
    (run,) = [one for one in tmp_path.iterdir() if one == shared]
    assert run.stat().st_mode & 0o077 == 0
    below = folders_of_nodes(first._replace(path=shared))
    assert [one.path.name for one in below] == ["node-2", "node-10"]


start_again = partial(take_run_folder, scheduled=True)


def over(folder: RunFolder) -> None:
    """Say in run.json that the run there has ended."""
    ended = replace(NAMED, ended_at="2026-11-20T11:00:00Z")
    write_atomically(folder.run_file, encode_pretty(ended))


@pytest.mark.parametrize("number", [0, 1])
def test_each_folder_holds_one_run_and_who_names_a_used_one_is_told(
    number: int, tmp_path: Path
) -> None:
    take_run_folder(str(tmp_path / "run"), RECORD, number)
    with pytest.raises(UsedRunFolder, match="already holds a run"):
        take_run_folder(str(tmp_path / "run"), RECORD, number)
    assert not (tmp_path / "run" / "start-2").exists()


def test_nodes_of_a_job_that_is_started_again_share_one_folder_below(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whichever comes first; nobody is there to name another one, and training must begin."""
    shared = tmp_path / "run"
    below = [""] + [f"start-{start}" for start in (2, 3)]
    for start in below:
        first = start_again(str(shared), RECORD)
        assert first.path == shared / start
        for number in (2, 1):
            taken = start_again(str(shared), RECORD, number)
            assert taken.path == shared / start / f"node-{number}"
        names = [one.path.name for one in folders_of_nodes(first)]
        assert names == ["node-1", "node-2"], start
        over(first)
    said = capfd.readouterr().err
    assert f"{shared} already holds a run; this one is kept in {shared}/start-2\n" in said


def test_a_folder_whose_name_is_not_utf8_is_no_reason_not_to_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert take_run_folder(None, RECORD).path.name.startswith("hangcheck-run-")
    assert "its name is not UTF-8; this run is kept" in capfd.readouterr().err


def test_where_no_node_has_a_number_yet_the_first_to_come_takes_it(tmp_path: Path) -> None:
    shared = tmp_path / "run"
    first = take_run_folder(str(shared), NAMED)
    second = take_run_folder(str(shared), NAMED)
    assert first.path == shared
    assert second.path == shared / f"node-{socket.gethostname().partition('.')[0]}"


@pytest.mark.parametrize(("number", "below"), [("0", ""), ("3", "/node-3")])
def test_so_do_nodes_that_only_have_the_callback(number: str, below: str, tmp_path: Path) -> None:
    environment = SLURM | {"SLURM_NODEID": number, "SLURM_JOB_ID": f"{os.getpid()}-{number}"}
    session = join_session(environment, identify(environment), str(tmp_path / "run"))
    try:
        assert session.facts.run_dir == f"{tmp_path}/run{below}"
    finally:
        session.remove()
