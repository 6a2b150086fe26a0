"""Which node this is, as torchrun itself would understand its command and variables."""

from __future__ import annotations

import shlex

import pytest

from lightning_hangcheck.doctor.launching.node_place import DEFAULT_PORT, node_place
from lightning_hangcheck.model.run import NodePlace


@pytest.mark.parametrize(
    ("options", "environment", "place"),
    [
        (
            "--nnodes=2 --node-rank=1 --master-addr=n0 --master-port=29501",
            {},
            NodePlace(number=1, nnodes=2, host="n0", port=29501),
        ),
        (
            "--nnodes 1:4 --node_rank 3 --master_addr n0",
            {},
            NodePlace(number=3, nnodes=4, host="n0", port=DEFAULT_PORT),
        ),
        (
            "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n0:29400",
            {"SLURM_NODEID": "0"},
            NodePlace(number=0, nnodes=2, host="n0", port=29400),
        ),
        (
            "",
            {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "n0"},
            NodePlace(number=1, nnodes=2, host="n0", port=DEFAULT_PORT),
        ),
        ("--nnodes=2 --node-rank=0 --rdzv-backend=etcd", {}, NodePlace(number=0, nnodes=2)),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n0", {}, None),
        ("--nnodes=2 --node-rank=2", {}, None),
        ("--nnodes=two --node-rank=0", {}, None),
        ("--nproc-per-node=8", {"SLURM_NODEID": "0"}, None),
    ],
)
def test_the_place_of_a_node_is_read_from_torchruns_options(
    options: str, environment: dict[str, str], place: NodePlace | None
) -> None:
    command = ["torchrun", *shlex.split(options), "train.py", "--nnodes=7"]
    assert node_place(command, environment) == place


def test_a_program_without_torchrun_has_no_place_among_nodes() -> None:
    assert node_place(["python", "train.py", "--nnodes=2", "--node-rank=1"], {}) is None
