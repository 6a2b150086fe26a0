"""A short DDP training on gloo that never heard of us; prints what it ends with."""

import sys

import gloo
import torch
from torch import distributed as dist


def train():
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.barrier()
    return model.module.bias.item()


gloo.join()
sys.stdout.write(f"rank {dist.get_rank()}: {train():.4f}\n")
gloo.leave()
