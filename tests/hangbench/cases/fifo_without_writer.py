"""Rank 1 opens a FIFO that nobody writes to, as storage that does not answer would block it."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from onset import mark_onset


def read_shard(path):
    mark_onset()
    return path.read_bytes()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    shard = Path(tempfile.mkdtemp()) / "shard"
    os.mkfifo(shard)
    read_shard(shard)
dist.barrier()
dist.destroy_process_group()
