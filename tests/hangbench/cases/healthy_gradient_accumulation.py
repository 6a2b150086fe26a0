"""Ranks meet only after every eighth micro-step, of a second each."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def micro_step(model):
    end = time.monotonic() + 1
    while time.monotonic() < end:
        model.module(torch.ones(64, 64)).sum()
    model(torch.ones(4, 64)).sum().backward()


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
for _ in range(2):
    with model.no_sync():
        for _ in range(7):
            micro_step(model)
    micro_step(model)
dist.barrier()
dist.destroy_process_group()
