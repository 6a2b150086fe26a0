"""Commands of every launcher, taken apart, and which node this is."""

from __future__ import annotations

import shlex

import pytest

from lightning_hangcheck.doctor.launch_command import (
    C10D_PORT,
    DEFAULT_PORT,
    job_of_nodes,
    read_launch,
)
from lightning_hangcheck.model.run import NodePlace

COMMANDS = {
    "torchrun --nproc_per_node=2 train.py --devices 2": "torchrun 2 1 train.py",
    "torchrun --standalone --nproc-per-node 4 -m pkg.train --x 1": "torchrun 4 1 -",
    "/opt/bin/torchrun --nnodes=1:3 --nproc_per_node=2 train.py": "torchrun 2 3 train.py",
    "torchrun --nproc_per_node=gpu train.py": "torchrun - 1 train.py",
    "torchrun train.py": "torchrun 1 1 train.py",
    "torchrun --nproc_per_node=2": "torchrun 2 1 -",
    "python -m torch.distributed.run --nproc_per_node 2 a.py": "torchrun 2 1 a.py",
    "python3.11 -u -m torch.distributed.launch --nproc_per_node=2 a.py": "torchrun 2 1 a.py",
    "python -m accelerate.commands.launch --num_processes 8 a.py": "accelerate 8 1 a.py",
    "accelerate launch --multi_gpu --num_processes 8 --num_machines 2 a.py": "accelerate 4 2 a.py",
    "srun --ntasks=8 -N 2 python train.py": "slurm 4 2 train.py",
    "srun --ntasks-per-node=3 python -u train.py": "slurm 3 1 train.py",
    "srun -p test -n 2 python train.py": "slurm 2 1 train.py",
    "srun -m block -n 2 torchrun a.py": "slurm 2 1 a.py",
    "mpirun -np 4 python train.py": "mpi 4 1 train.py",
    "python -u train.py --epochs 3": "python - 1 train.py",
    "python -m pkg.train": "python - 1 -",
    "make train": "none - 1 -",
    "": "none - 1 -",
}
"""Launcher, ranks on a node, nodes, and the script; a dash where the words leave it open."""


@pytest.mark.parametrize(("line", "parts"), COMMANDS.items())
def test_a_command_tells_launcher_ranks_nodes_and_script(line: str, parts: str) -> None:
    launch = read_launch(line.split(), {})
    found = (launch.launcher, launch.local_ranks, launch.nodes, launch.script)
    assert ["-" if one is None else str(one) for one in found] == parts.split()


def test_srun_takes_from_the_allocation_what_it_is_not_told() -> None:
    launch = read_launch(["srun", "python", "a.py"], {"SLURM_NTASKS": "8", "SLURM_NNODES": "2"})
    assert (launch.local_ranks, launch.nodes, launch.ranks) == (4, 2, 8)


SLURM_TASK = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


C10D, PET = "--rdzv-backend=c10d --rdzv-endpoint=", {"PET_NNODES": "2", "PET_NODE_RANK": "1"}


@pytest.mark.parametrize(
    ("options", "environment", "place"),
    [
        ("--nnodes=2 --node-rank=1 --master-addr=n0 --master-port=21", {}, (1, 2, "n0", 21)),
        ("--nnodes 1:4 --node_rank 3 --master_addr n0", {}, (3, 4, "n0", DEFAULT_PORT)),
        (f"--nnodes=2 {C10D}n0:29400", {"SLURM_NODEID": "0"}, (0, 2, "n0", 29400)),
        ("", PET | {"PET_MASTER_ADDR": "n0"}, (1, 2, "n0", DEFAULT_PORT)),
        ("--nnodes=2 --node-rank=0 --rdzv-backend=etcd", {}, (0, 2, "", 0)),
        (f"--nnodes=2 {C10D}n0", {}, None),
        ("--nnodes=2 --node-rank=2", {}, None),
        ("--nnodes=two --node-rank=0", {}, None),
        ("--nproc-per-node=8", {"SLURM_NODEID": "0"}, None),
    ],
)
def test_the_place_of_a_node_is_read_from_torchruns_options(
    options: str, environment: dict[str, str], place: tuple[int, int, str, int] | None
) -> None:
    command = ["torchrun", *shlex.split(options), "train.py", "--nnodes=7"]
    found = job_of_nodes(command, environment).place
    assert (found and (found.number, found.nnodes, found.host, found.port)) == place


def test_accelerate_starts_torchrun_and_has_names_of_its_own_for_its_options() -> None:
    options = "--num_machines 2 --machine_rank=1 --main_process_ip n0 --main_process_port 29501"
    command = ["accelerate", "launch", *shlex.split(options), "train.py"]
    assert job_of_nodes(command, {}).place == NodePlace(number=1, nnodes=2, host="n0", port=29501)
    assert job_of_nodes(["accelerate", "launch", "train.py"], {}).place is None


def test_a_task_of_slurm_that_runs_a_script_has_the_place_that_slurm_gave_it() -> None:
    task = SLURM_TASK | {"SLURM_NODEID": "1", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    place = job_of_nodes(["python", "train.py"], task).place
    assert place == NodePlace(number=1, nnodes=2, ranks=1, job="slurm-7-0")


def test_where_a_node_has_several_tasks_each_is_a_place_of_its_own() -> None:
    task = SLURM_TASK | {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    }
    place = job_of_nodes(["python", "train.py"], task).place
    assert place == NodePlace(number=3, nnodes=4, ranks=1, job="slurm-7-0", machines=2)


@pytest.mark.parametrize(
    ("options", "store"),
    [
        ("--nnodes=1:3 --rdzv-backend=c10d --rdzv-endpoint=n0:29511", ("n0", 29511)),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n0", ("n0", C10D_PORT)),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=[::1]:29511", ("::1", 29511)),
        ("--nnodes=2 --rdzv-backend=c10d", ("", 0)),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=/a --rdzv-conf=store_type=file", ("", 0)),
        ("--nnodes=2 --rdzv-backend=etcd-v2 --rdzv-endpoint=n0:2379", ("", 0)),
        ("--standalone", ("", 0)),
    ],
)  # fmt: skip
def test_the_store_where_torchruns_agents_meet(options: str, store: tuple[str, int]) -> None:
    assert job_of_nodes(["torchrun", *shlex.split(options), "train.py"], {}).store == store
