"""Rank 0 saves a checkpoint to storage that takes no more bytes; a full pipe stands for it."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from onset import mark_onset


def mount_dead_storage():
    path = Path(tempfile.mkdtemp()) / "last.ckpt"
    os.mkfifo(path)
    return path, os.open(path, os.O_RDWR)


def save_checkpoint(model, path):
    mark_onset()
    with path.open("wb") as file:
        torch.save(model.state_dict(), file)


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    path, kept_open = mount_dead_storage()
    save_checkpoint(torch.nn.Linear(500, 500), path)
dist.barrier()
dist.destroy_process_group()
