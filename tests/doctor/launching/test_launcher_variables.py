"""Variables of launchers: in agreement, contradicting each other, left over."""

from __future__ import annotations

import pytest
from subjects import subject

from lightning_hangcheck.doctor.launching import launch_variables, slurm_tasks


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 cannot be with WORLD_SIZE=2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x' is not a whole number"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK=1"),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}, "more than WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "waits for other ranks"),
        ({"LOCAL_RANK": "1"}, "waits for other ranks"),
    ],
)
def test_numbers_that_cannot_be_fail_with_the_variables_to_unset(
    variables: dict[str, str], named: str
) -> None:
    (check, *_) = launch_variables(subject("python train.py", **variables))
    assert check.status == "failed"
    assert named in check.sentence
    assert check.remedy.startswith("unset RANK")


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ("python train.py", {}),
        ("torchrun --nproc_per_node=2 train.py", {"RANK": "0", "WORLD_SIZE": "2"}),
        ("python train.py", {"RANK": "0", "WORLD_SIZE": "1"}),
        ("python train.py", {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a"}),
    ],
)
def test_what_the_launcher_sets_itself_is_no_problem(
    command: str, variables: dict[str, str]
) -> None:
    assert [one.status for one in launch_variables(subject(command, **variables))] == ["ok"]


@pytest.mark.parametrize(
    ("command", "variables", "remedy"),
    [
        ("python train.py", {"SLURM_NTASKS": "2"}, "srun python train.py"),
        ("srun python train.py", {"SLURM_NTASKS": "4"}, "#SBATCH --ntasks-per-node=4"),
        (
            "srun python train.py --devices 2",
            {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"},
            "#SBATCH --ntasks-per-node=2",
        ),
    ],
)
def test_tasks_that_nobody_starts_fail(
    command: str, variables: dict[str, str], remedy: str
) -> None:
    (check,) = slurm_tasks(subject(command, **variables))
    assert (check.status, check.remedy) == ("failed", remedy)


@pytest.mark.parametrize(
    ("command", "variables", "asked"),
    [
        ("srun python a.py", {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}, True),
        ("python a.py", {"SLURM_NTASKS": "1"}, True),
        ("srun --ntasks-per-node=2 python a.py", {"SLURM_NTASKS": "2"}, True),
        ("python a.py", {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, True),
        ("python a.py", {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "bash"}, False),
        ("python a.py", {}, False),
    ],
)
def test_tasks_that_agree_are_fine(command: str, variables: dict[str, str], *, asked: bool) -> None:
    checks = slurm_tasks(subject(command, **variables))
    assert [check.status for check in checks] == (["ok"] if asked else [])
