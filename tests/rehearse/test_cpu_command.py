"""What is started in place of the user's command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.rehearse import CannotRehearse, on_cpu_ranks

if TYPE_CHECKING:
    from pathlib import Path

OURS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("torchrun --nproc_per_node=8 --nnodes=4 --rdzv-id 7 gone.py --lr 1", "gone.py --lr 1"),
        ("python -m torch.distributed.run --nproc-per-node 8 gone.py", "gone.py"),
        ("torchrun --nproc_per_node=8 -m package.train --lr 1", "-m package.train --lr 1"),
        ("accelerate launch --multi_gpu --num_processes 8 gone.py --lr 1", "gone.py --lr 1"),
        ("python -u gone.py --lr 1", "gone.py --lr 1"),
        ("python -m package.train --lr 1", "-m package.train --lr 1"),
    ],
)
def test_torchrun_starts_as_many_ranks_as_wanted(command: str, program: str) -> None:
    assert on_cpu_ranks(command.split(), 2)[0] == (*OURS, *program.split())


@pytest.mark.parametrize(
    "text",
    [
        "import lightning as L\n",
        "from pytorch_lightning import Trainer\n",
        "from helper import run\n",
        "import torch.multiprocessing as mp\nmp.spawn(run, nprocs=2)\n",
    ],
)
def test_a_script_that_starts_its_ranks_is_left_to_it(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    (tmp_path / "helper.py").write_text("from lightning.pytorch import Trainer\n")
    command = ("python", str(script), "--devices", "8")
    assert on_cpu_ranks(command, 2)[0] == command


@pytest.mark.parametrize("text", ["x.to('cuda')", "import helper"])
def test_a_program_that_names_cuda_is_told_from_its_files(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "helper.py").write_text("device = 'cuda:0'")
    assert on_cpu_ranks(("python", str(tmp_path / "train.py")), 2)[1]


@pytest.mark.parametrize(
    "command", ["srun python train.py", "bash train.sh", "python -c pass", "python", "torchrun"]
)
def test_what_cannot_be_rehearsed_is_said_with_the_way_out(command: str) -> None:
    with pytest.raises(CannotRehearse, match=r"^cannot be rehearsed: .*hangcheck rehearse -- "):
        on_cpu_ranks(command.split(), 2)
