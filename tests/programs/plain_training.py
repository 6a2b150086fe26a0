"""A short DDP training on gloo that never heard of us; prints what it ends with."""

import sys

import torch
from torch import distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.barrier()
sys.stdout.write(f"rank {dist.get_rank()}: {model.module.bias.item():.4f}\n")
# DDP's reducer keeps the group alive, and a thread of gloo that frees a tensor while the
# interpreter is torn down aborts the rank: https://github.com/pytorch/pytorch/pull/179291
del model, optimizer
dist.destroy_process_group()
