"""Rank 0 waits 5 s for a rate limit while rank 1 waits for it, three times."""

import time

import torch
import torch.distributed as dist


def wait_for_rate_limit():
    time.sleep(5)


dist.init_process_group("gloo")
for _ in range(3):
    if dist.get_rank() == 0:
        wait_for_rate_limit()
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
