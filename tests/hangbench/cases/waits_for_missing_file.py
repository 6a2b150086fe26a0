"""Rank 1 looks every half second for a shard that nobody writes."""

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from onset import mark_onset


def wait_for_shard(path):
    mark_onset()
    while not path.exists():
        time.sleep(0.5)


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    wait_for_shard(Path(tempfile.mkdtemp()) / "shard-1.tar")
dist.barrier()
dist.destroy_process_group()
