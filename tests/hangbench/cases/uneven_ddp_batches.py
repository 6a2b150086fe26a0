"""Rank 1 has fewer batches than rank 0, and waits behind the loop for it."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel

BATCHES = {0: 40, 1: 30}


def train(model, batches):
    for _ in range(batches):
        model(torch.ones(2, 4)).sum().backward()
    mark_onset()
    dist.barrier()


dist.init_process_group("gloo")
train(DistributedDataParallel(torch.nn.Linear(4, 4)), BATCHES[dist.get_rank()])
dist.destroy_process_group()
