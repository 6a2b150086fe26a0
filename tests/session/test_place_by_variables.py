"""Which place and which job the variables of a process name."""

from __future__ import annotations

import pytest

from lightning_hangcheck.identity import NodePlace, identify
from lightning_hangcheck.session.session import job_key, key_of_nodes, node_key, place_in, start_key

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


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (TORCHRUN, OF_TORCHRUN),
        (TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "0"}, OF_TORCHRUN._replace(host="", port=0)),
        (SLURM, OF_SLURM),
        (SLURM | {"SLURM_JOB_NODELIST": "n[07-09],m1"}, OF_SLURM._replace(first="n07")),
        (RAY, OF_RAY),
        (RAY | {"LOCAL_WORLD_SIZE": "4"}, None),
        ({}, None),
    ],
)
def test_the_launchers_variables_say_which_node_this_is(
    environment: dict[str, str], place: NodePlace | None
) -> None:
    assert place_in(environment) == place


ONE_NODE = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}

TWO_NODES = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


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


def test_nodes_of_one_job_agree_and_another_run_id_is_another_job() -> None:
    """Nothing of it may be of this node: another node's launcher has another process id."""
    ours = keys(torchrun(0, run="demo", **TWO_NODES))[0]
    assert ours == "torchrun-demo"
    assert keys(torchrun(3, run="demo", attempt=1, **TWO_NODES))[0] == ours
    assert keys(torchrun(0, **TWO_NODES))[0] == "torchrun-node0-29500"


SLURM_TASK = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}


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
