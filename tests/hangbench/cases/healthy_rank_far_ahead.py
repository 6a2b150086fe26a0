"""Rank 0 has many reductions in flight and waits for their end; rank 1 computes for 40 s."""

import time

import torch
import torch.distributed as dist


def compute(seconds):
    matrix = torch.randn(200, 200)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        matrix = (matrix @ matrix).tanh()


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    handles = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(20)]
    for handle in handles:
        handle.wait()
else:
    compute(40)
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
