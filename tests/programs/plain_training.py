"""A short training on gloo that never heard of us; prints what it ends with."""

import sys

import gloo
import torch
from torch import distributed as dist


def train():
    weights = torch.zeros(4)
    for step in range(200):
        gradient = (weights - step) * (dist.get_rank() + 1)
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
    dist.barrier()
    return weights.sum().item()


gloo.join()
sys.stdout.write(f"rank {dist.get_rank()}: {train():.4f}\n")
gloo.leave()
