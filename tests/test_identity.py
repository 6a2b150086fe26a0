"""Who is this process? Told by the environment of each launcher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lightning_hangcheck.identity import Identity, identify

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
}
SLURM_STEP = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
}


def test_torchrun() -> None:
    assert identify(TORCHRUN) == Identity(
        rank=5,
        world_size=8,
        local_rank=1,
        local_world_size=4,
        node_rank=1,
        launcher="torchrun",
    )


def test_another_launcher_that_sets_rank_and_world_size() -> None:
    identity = identify({"RANK": "0", "WORLD_SIZE": "2"})
    assert (identity.rank, identity.launcher) == (0, "environment")
    assert identity.peers_exist


def test_a_slurm_step() -> None:
    assert identify(SLURM_STEP) == Identity(
        rank=5, world_size=8, local_rank=1, node_rank=1, launcher="slurm"
    )


@pytest.mark.parametrize(("node", "tasks"), [("0", 2), ("2", 2), ("3", 1), ("4", None)])
def test_slurm_says_how_many_tasks_each_node_has(node: str, tasks: int | None) -> None:
    step = SLURM_STEP | {"SLURM_NODEID": node, "SLURM_TASKS_PER_NODE": "2(x3),1"}
    assert identify(step).local_world_size == tasks


@pytest.mark.parametrize("name", ["bash", "interactive"])
def test_a_slurm_shell_is_no_rank(name: str) -> None:
    identity = identify(SLURM_STEP | {"SLURM_JOB_NAME": name})
    assert (identity.rank, identity.launcher) == (None, "none")


def test_torchrun_within_slurm_is_torchrun() -> None:
    assert identify(SLURM_STEP | TORCHRUN).launcher == "torchrun"


def test_a_rank_that_lightning_started() -> None:
    identity = identify({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"})
    assert (identity.rank, identity.world_size, identity.launcher) == (1, 2, "lightning")


def test_on_further_nodes_only_lightning_knows_the_rank() -> None:
    identity = identify({"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"})
    assert (identity.rank, identity.local_rank) == (None, 1)


def test_a_plain_process_has_no_peers_yet() -> None:
    identity = identify({"PATH": "/bin"})
    assert identity == Identity()
    assert not identity.peers_exist


@pytest.mark.parametrize("text", ["two", "", "-1", "1.5", "٣²"])
def test_a_variable_that_is_no_number_is_a_sentence_and_not_an_error(text: str) -> None:
    identity = identify({"RANK": "1", "WORLD_SIZE": text})
    assert (identity.rank, identity.world_size) == (1, None)
    (problem,) = identity.problems
    assert problem.startswith(f"WORLD_SIZE={text!r} is not a whole number")
    assert "unset it" in problem


names = some.sampled_from([*TORCHRUN, *SLURM_STEP, "NODE_RANK"])


@given(some.dictionaries(names, some.text(max_size=4)))
def test_no_environment_makes_it_fail(environment: dict[str, str]) -> None:
    identity = identify(environment)
    assert identity.rank is None or identity.rank >= 0
