"""Rank 1 does not stop accumulating gradients, so it never meets the others in backward."""

import contextlib

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
spare_memory = 6 if rank == 1 else 1000
for step in range(20):
    if step == 6:
        mark_onset()
    saves = step >= spare_memory
    with model.no_sync() if saves else contextlib.nullcontext():
        model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
