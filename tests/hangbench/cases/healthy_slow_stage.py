"""In a pipeline of three the second stage takes nine seconds for each batch."""

import time

import torch
import torch.distributed as dist


def compute(seconds):
    matrix = torch.randn(200, 200)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        matrix = (matrix @ matrix).tanh()


dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(5):
    batch = torch.randn(64, 64)
    if rank > 0:
        dist.recv(batch, src=rank - 1)
    compute(9 if rank == 1 else 0.05)
    if rank < dist.get_world_size() - 1:
        dist.send(batch, dst=rank + 1)
dist.barrier()
dist.destroy_process_group()
