"""Makes a group, posts messages, calls collectives; torch's fake backend is the other rank."""

import inspect
import sys

import torch
import torch.distributed as dist
from announcing import announce
from torch.testing._internal.distributed.fake_pg import FakeStore


def post():
    group = dist.new_group([1, 0])
    for _ in range(3):
        received = dist.irecv(torch.empty(4), 1)
        dist.send(torch.ones(4), 1)
        received.wait()
    by_group = "group_peer" in inspect.signature(dist.P2POp.__new__).parameters  # not in torch 2.5
    end = {"group_peer" if by_group else "peer": 1}
    operations = [
        dist.P2POp(dist.irecv, torch.empty(4), group=group, **end),
        dist.P2POp(dist.isend, torch.ones(4), group=group, **end),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


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
post()
announce("called")
sys.stdin.read()
