"""Calls collectives from a few places; torch's fake backend answers for the other rank."""

import time

import torch
import torch.distributed as dist
from announcing import announce
from torch.testing._internal.distributed.fake_pg import FakeStore


def step():
    dist.all_reduce(torch.ones(4))


def finish():
    dist.broadcast(torch.ones(4), 1)
    dist.reduce(torch.ones(4), dst=1, op=dist.ReduceOp.MAX)
    dist.barrier()


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
for _ in range(2):
    step()
finish()
announce("called")
time.sleep(60)
