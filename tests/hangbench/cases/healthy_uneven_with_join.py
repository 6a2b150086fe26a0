"""Rank 1 has fewer batches, and DDP's Join lets it shadow the others' collectives."""

import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(model, batches):
    with Join([model]):
        for _ in range(batches):
            time.sleep(0.05)
            model(torch.ones(2, 4)).sum().backward()


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
train(model, 120 if dist.get_rank() == 0 else 40)
dist.barrier()
dist.destroy_process_group()
