"""Which place and which job the variables of a process name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lightning_hangcheck.identity import identify
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.session.session import Session, SessionFacts
from lightning_hangcheck.session.whose import (
    agent_pid,
    first_host,
    job_key,
    key_of_nodes,
    node_key,
    place_in,
    place_of,
    start_key,
    tell_place,
)

if TYPE_CHECKING:
    from pathlib import Path

TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}

SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "2,1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}

RAY = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "40001",
}

OF_TORCHRUN = NodePlace(
    number=1, nnodes=2, host="n0", port=29400, ranks=2, job="torchrun-job7", first="n0"
)

OF_SLURM = NodePlace(number=1, nnodes=2, ranks=1, job="slurm-7-0")

OF_RAY = NodePlace(number=1, nnodes=2, ranks=2, job="environment-10.0.0.1-40001", first="10.0.0.1")

THREE = {"SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (TORCHRUN, OF_TORCHRUN),
        (TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "0"}, replace(OF_TORCHRUN, host="", port=0)),
        (SLURM, OF_SLURM),
        (SLURM | THREE, replace(OF_SLURM, nnodes=3)),
        (SLURM | {"SLURM_JOB_NODELIST": "n[07-09],m1"}, replace(OF_SLURM, first="n07")),
        (RAY, OF_RAY),
        (RAY | {"LOCAL_WORLD_SIZE": "4"}, None),
        ({"RANK": "2", "WORLD_SIZE": "4"}, None),
        (TORCHRUN | {"GROUP_RANK": "two"}, None),
        ({"NODE_RANK": "1", "MASTER_ADDR": "n0"}, None),
        ({}, None),
    ],
)
def test_the_launchers_variables_say_which_node_this_is(
    environment: dict[str, str], place: NodePlace | None
) -> None:
    assert place_in(environment) == place


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("node[007-012,20],gpu3", "node007"),
        ("rack[3,5]-a.example.org", "rack3-a.example.org"),
        ("n[1-2]x[3-4]", ""),
        ("$(id)", ""),
        ("", ""),
    ],
)
def test_the_first_host_of_a_slurm_step(hosts: str, first: str) -> None:
    """As `scontrol show hostnames` has it."""
    assert first_host({"SLURM_STEP_NODELIST": hosts, "SLURM_JOB_NODELIST": "other"}) == first


BY_COMMAND = NodePlace(number=1, nnodes=4, host="first", port=29500)
TASK = NodePlace(number=3, nnodes=4, ranks=1, job="slurm-7-0", machines=2)


@pytest.mark.parametrize(
    ("by_command", "store", "by_rank", "place"),
    [
        (None, ("", 0), None, None),
        (None, ("n0", 29400), None, None),
        (None, ("", 0), OF_TORCHRUN, OF_TORCHRUN),
        # the ranks' own store is another one in each round, and in a broken one not the same
        (None, ("n0", 29400), replace(OF_TORCHRUN, port=9), replace(OF_TORCHRUN, job="the job")),
        (BY_COMMAND, ("", 0), None, BY_COMMAND),
        (BY_COMMAND, ("", 0), OF_TORCHRUN, replace(BY_COMMAND, nnodes=2, ranks=2)),
        # a task that watches its own rank is no whole node
        (TASK, ("", 0), OF_SLURM, TASK),
    ],
)
def test_where_nodes_meet_is_told_by_the_command_and_how_many_came_by_the_ranks(
    by_command: NodePlace | None,
    store: tuple[str, int],
    by_rank: NodePlace | None,
    place: NodePlace | None,
    tmp_path: Path,
) -> None:
    job = "the job" if store[0] else ""
    facts = SessionFacts(
        run_dir="", command="", started_at="", root_pid=1, job=job, node=by_command, store=store
    )
    session = Session(tmp_path, facts)
    if by_rank is not None:
        for number in (by_rank.number + 1, by_rank.number):  # a later round numbers them anew
            tell_place(session, replace(by_rank, number=number))
    assert place_of(session) == place


ONE_NODE = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}

TWO_NODES = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}

SLURM_TASK = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}


def torchrun(rank: int = 0, attempt: int = 0, run: str = "none", **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        **ONE_NODE,
        **more,
    }


def keys(environment: dict[str, str]) -> tuple[str, str, str]:
    identity = identify(environment)
    return (
        job_key(environment, identity),
        node_key(environment, identity),
        start_key(environment, identity),
    )


def test_all_rounds_and_ranks_share_the_job_and_each_round_is_a_start_of_its_own() -> None:
    job, node, start = keys(torchrun(0))
    assert keys(torchrun(1)) == (job, node, start)
    assert keys(torchrun(0, attempt=1))[:2] == (job, node)
    assert keys(torchrun(0, attempt=1))[2] != start


def test_nodes_meet_under_one_key_though_their_agents_count_differently() -> None:
    """An agent counts the failures of its own ranks, and no change of nodes (torch's api.py)."""
    ours = torchrun(0, attempt=1, **TWO_NODES)
    theirs = torchrun(2, attempt=0, **TWO_NODES, TORCHELASTIC_ERROR_FILE="/elsewhere/error.json")
    assert key_of_nodes(ours, identify(ours)) == key_of_nodes(theirs, identify(theirs))
    fewer = {**ours, "WORLD_SIZE": "2"}
    assert key_of_nodes(fewer, identify(fewer)) != key_of_nodes(ours, identify(ours))


def test_a_round_with_an_old_count_is_a_start_of_its_own(tmp_path: Path) -> None:
    """torchrun makes the folder of its attempt anew, also where it does not count the restart."""
    attempt = tmp_path / "none_abc" / "attempt_0"
    told = torchrun(0, TORCHELASTIC_ERROR_FILE=str(attempt / "0" / "error.json"))
    (attempt / "0").mkdir(parents=True)
    os.utime(attempt, ns=(1, 1))
    before = keys(told)
    (attempt / "0" / "error.json").touch()
    assert keys(told) == before
    shutil.rmtree(attempt)
    (attempt / "0").mkdir(parents=True)
    assert keys(told)[:2] == before[:2]
    assert keys(told)[2] != before[2]


def test_a_requeued_job_of_slurm_is_the_same_job() -> None:
    job, node, start = keys(SLURM_TASK)
    again = keys({**SLURM_TASK, "SLURM_RESTART_COUNT": "1"})
    assert again[:2] == (job, node)
    assert again[2] != start
    assert keys({**SLURM_TASK, "SLURM_JOB_ID": "8"})[0] != job
    assert keys({**SLURM_TASK, "SLURM_STEP_ID": "1"})[1] != node


def test_nodes_of_one_job_agree_and_another_run_id_is_another_job() -> None:
    """Nothing of it may be of this node: another node's launcher has another process id."""
    ours = keys(torchrun(0, run="demo", **TWO_NODES))[0]
    assert ours == "torchrun-demo"
    assert keys(torchrun(3, run="demo", attempt=1, **TWO_NODES))[0] == ours
    assert keys(torchrun(0, **TWO_NODES))[0] == "torchrun-node0-29500"


def test_daemons_of_two_nodes_that_one_terminal_started_are_two_nodes() -> None:
    """Two of Ray, tried on one machine: their ranks share the terminal's session and the port."""
    told = {"RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "40001"}
    spread = told | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    job, node, _ = keys(spread | {"NODE_RANK": "0"})
    other = keys(spread | {"NODE_RANK": "1", "RANK": "1"})
    assert other[0] == job
    assert other[1] != node
    assert keys(spread | {"NODE_RANK": "0", "RANK": "2"})[1] == node


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (torchrun(attempt=2), (2, 3)),
        ({**SLURM_TASK, "SLURM_RESTART_COUNT": "1"}, (1, None)),
        (SLURM_TASK, (None, None)),
        ({"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_the_round_is_what_the_launcher_counts(
    environment: dict[str, str], expected: tuple[int | None, int | None]
) -> None:
    identity = identify(environment)
    assert (identity.round, identity.most_restarts) == expected


def test_the_agent_is_found_through_a_shell_between_it_and_the_rank() -> None:
    """As of ``torchrun --no-python wrapper.sh``: the shell was told the run id, the agent not."""
    code = "from lightning_hangcheck.session.whose import *; print(agent_pid(os.environ))"
    told = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -c "{code}"; true'],
        env={**os.environ, "TORCHELASTIC_RUN_ID": "demo"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(told.stdout) == os.getpid()
    assert agent_pid({"TORCHELASTIC_RUN_ID": "demo"}) == os.getppid()
