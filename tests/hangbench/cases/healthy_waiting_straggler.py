"""Rank 1 waits one and a half seconds for each of its batches; rank 0 waits for it."""

import time

import torch
import torch.distributed as dist


def fetch_batch():
    if dist.get_rank() == 1:
        time.sleep(1.5)
    return torch.ones(4)


dist.init_process_group("gloo")
for _ in range(12):
    dist.all_reduce(fetch_batch())
dist.barrier()
dist.destroy_process_group()
