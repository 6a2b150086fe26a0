"""One --run-dir that all nodes of a job are given, and what each of them makes of it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lightning_hangcheck.errors import UsedRunFolder
from lightning_hangcheck.files.atomic import write_atomically
from lightning_hangcheck.identity import identify
from lightning_hangcheck.launch.folder import take_run_folder
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir.layout import folders_of_nodes
from lightning_hangcheck.session.joining import join_session

if TYPE_CHECKING:
    from pathlib import Path

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
    below = folders_of_nodes(replace(first, path=shared))
    assert [one.path.name for one in below] == ["node-2", "node-10"]


def test_each_nodes_folder_holds_one_run(tmp_path: Path) -> None:
    take_run_folder(str(tmp_path / "run"), RECORD, 1)
    with pytest.raises(UsedRunFolder, match="node-1 already holds a run"):
        take_run_folder(str(tmp_path / "run"), RECORD, 1)


def test_where_no_node_has_a_number_yet_the_first_to_come_takes_it(tmp_path: Path) -> None:
    shared = tmp_path / "run"
    first = take_run_folder(str(shared), NAMED)
    second = take_run_folder(str(shared), NAMED)
    assert first.path == shared
    assert second.path == shared / f"node-{socket.gethostname().partition('.')[0]}"


def test_hosts_that_have_one_name_take_one_each(tmp_path: Path) -> None:
    shared = tmp_path / "run"
    taken = [take_run_folder(str(shared), NAMED).path for _ in range(4)]
    assert len(set(taken)) == 4
    named = f"{shared}/node-{socket.gethostname().partition('.')[0]}"
    assert all(str(one).startswith(named) for one in taken[1:])


@pytest.mark.parametrize("ended", [True, False], ids=["the same job again", "another job"])
def test_a_folder_of_an_earlier_run_is_refused(ended: bool, tmp_path: Path) -> None:
    first = take_run_folder(str(tmp_path / "run"), NAMED if ended else RECORD)
    if ended:
        over = replace(NAMED, ended_at="2026-11-20T11:00:00Z")
        write_atomically(first.run_file, encode_pretty(over))
    with pytest.raises(UsedRunFolder, match="already holds a run"):
        take_run_folder(str(tmp_path / "run"), NAMED)


@pytest.mark.parametrize(("number", "below"), [("0", ""), ("3", "/node-3")])
def test_so_do_nodes_that_only_have_the_callback(number: str, below: str, tmp_path: Path) -> None:
    environment = SLURM | {"SLURM_NODEID": number, "SLURM_JOB_ID": f"{os.getpid()}-{number}"}
    session = join_session(environment, identify(environment), str(tmp_path / "run"))
    try:
        assert session.facts.run_dir == f"{tmp_path}/run{below}"
    finally:
        session.remove()
