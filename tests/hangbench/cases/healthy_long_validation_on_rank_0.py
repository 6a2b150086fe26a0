"""Rank 0 evaluates the unwrapped model for 15 s while the others wait at a barrier."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def evaluate(model):
    end = time.monotonic() + 15
    batches = 0
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.ones(64, 64))
            batches += 1
    return batches


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
for _ in range(20):
    model(torch.ones(4, 64)).sum().backward()
if dist.get_rank() == 0:
    print(evaluate(model.module), "batches")
dist.barrier()
dist.destroy_process_group()
