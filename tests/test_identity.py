"""Who is this process? Told by the environment of each launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.identity import Identity, identify

if TYPE_CHECKING:
    from lightning_hangcheck.identity import Launcher

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


SHELL = SLURM_STEP | {"SLURM_JOB_NAME": "bash"}
FOUR_NODES = {"SLURM_TASKS_PER_NODE": "2(x3),1"}
OF_TORCHRUN = {"rank": 5, "world_size": 8, "local_rank": 1, "local_world_size": 4, "node_rank": 1}
OF_SLURM = {"rank": 5, "world_size": 8, "local_rank": 1, "node_rank": 1}


@pytest.mark.parametrize(
    ("environment", "launcher", "told"),
    [
        ({"PATH": "/bin"}, "none", {}),
        (TORCHRUN, "torchrun", OF_TORCHRUN),
        (SLURM_STEP | TORCHRUN, "torchrun", OF_TORCHRUN),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "environment", {"rank": 0, "world_size": 2}),
        (SLURM_STEP, "slurm", OF_SLURM),
        (SLURM_STEP | FOUR_NODES, "slurm", OF_SLURM | {"local_world_size": 2}),
        (
            SLURM_STEP | FOUR_NODES | {"SLURM_NODEID": "3"},
            "slurm",
            OF_SLURM | {"local_world_size": 1, "node_rank": 3},
        ),
        (SHELL, "none", {}),
        (
            {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"},
            "lightning",
            {"rank": 1, "world_size": 2, "local_rank": 1, "node_rank": 0},
        ),
        (  # on further nodes only Lightning knows the rank
            {"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"},
            "lightning",
            {"world_size": 4, "local_rank": 1, "node_rank": 1},
        ),
    ],
)
def test_the_launchers_variables_say_who_this_is(
    environment: dict[str, str], launcher: Launcher, told: dict[str, int]
) -> None:
    identity = identify(environment)
    assert identity == Identity(launcher=launcher, **told)  # type: ignore[arg-type]
    assert identity.peers_exist == (launcher not in ("none", "lightning"))


@pytest.mark.parametrize("text", ["two", "", "-1", "1.5", "٣²"])
def test_a_variable_that_is_no_number_is_a_sentence_and_not_an_error(text: str) -> None:
    identity = identify({"RANK": "1", "WORLD_SIZE": text})
    assert (identity.rank, identity.world_size) == (1, None)
    (problem,) = identity.problems
    assert problem.startswith(f"WORLD_SIZE={text!r} is not a whole number")
    assert "unset it" in problem
