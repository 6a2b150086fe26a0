"""Commands of every launcher, taken apart."""

from __future__ import annotations

import pytest

from lightning_hangcheck.doctor.launch import read_launch

COMMANDS = {
    "torchrun --nproc_per_node=2 train.py --devices 2": ("torchrun", 2, 1, "train.py"),
    "torchrun --standalone --nproc-per-node 4 -m pkg.train --x 1": ("torchrun", 4, 1, None),
    "/opt/bin/torchrun --nnodes=1:3 --nproc_per_node=2 train.py": ("torchrun", 2, 3, "train.py"),
    "torchrun --nproc_per_node=gpu train.py": ("torchrun", None, 1, "train.py"),
    "torchrun train.py": ("torchrun", 1, 1, "train.py"),
    "torchrun --nproc_per_node=2": ("torchrun", 2, 1, None),
    "python -m torch.distributed.run --nproc_per_node 2 a.py": ("torchrun", 2, 1, "a.py"),
    "python3.11 -u -m torch.distributed.launch --nproc_per_node=2 a.py": ("torchrun", 2, 1, "a.py"),
    "python -m accelerate.commands.launch --num_processes 8 --num_machines 2 a.py": (
        "accelerate",
        4,
        2,
        "a.py",
    ),
    "accelerate launch --multi_gpu --num_processes 8 --num_machines 2 a.py": (
        "accelerate",
        4,
        2,
        "a.py",
    ),
    "srun --ntasks=8 -N 2 python train.py": ("slurm", 4, 2, "train.py"),
    "srun --ntasks-per-node=3 python -u train.py": ("slurm", 3, 1, "train.py"),
    "srun -p test -n 2 python train.py": ("slurm", 2, 1, "train.py"),
    "srun -m block -n 2 torchrun a.py": ("slurm", 2, 1, "a.py"),
    "mpirun -np 4 python train.py": ("mpi", 4, 1, "train.py"),
    "python -u train.py --epochs 3": ("python", None, 1, "train.py"),
    "python -m pkg.train": ("python", None, 1, None),
    "make train": ("none", None, 1, None),
    "": ("none", None, 1, None),
}


@pytest.mark.parametrize(("line", "parts"), COMMANDS.items())
def test_a_command_tells_launcher_ranks_nodes_and_script(
    line: str, parts: tuple[str, int | None, int, str | None]
) -> None:
    launch = read_launch(line.split(), {})
    assert (launch.launcher, launch.local_ranks, launch.nodes, launch.script) == parts


def test_srun_takes_from_the_allocation_what_it_is_not_told() -> None:
    launch = read_launch(["srun", "python", "a.py"], {"SLURM_NTASKS": "8", "SLURM_NNODES": "2"})
    assert (launch.local_ranks, launch.nodes, launch.ranks) == (4, 2, 8)


@pytest.mark.parametrize(
    ("line", "prefix"),
    [
        ("torchrun --nproc_per_node=2 train.py", "torchrun --nproc_per_node=2"),
        ("torchrun --nproc_per_node 2 -m pkg", "torchrun --nproc_per_node 2"),
        (
            "python -m torch.distributed.run --nnodes 1 -m pkg",
            "python -m torch.distributed.run --nnodes 1",
        ),
        ("srun --ntasks 2 python train.py", "srun --ntasks 2"),
        ("srun -m block python train.py", "srun -m block"),
    ],
)
def test_the_prefix_starts_another_program_in_the_same_way(line: str, prefix: str) -> None:
    assert read_launch(line.split(), {}).prefix == tuple(prefix.split())


def test_arguments_of_the_program_are_its_own() -> None:
    launch = read_launch(
        ["torchrun", "--nproc_per_node=2", "a.py", "--devices=4", "--strategy", "ddp"], {}
    )
    assert (launch.argument("--devices"), launch.argument("--strategy")) == ("4", "ddp")
    assert launch.argument("--nproc-per-node") is None
