"""Rank 1 waits in an event loop for an answer that nobody gives."""

import asyncio

import torch
import torch.distributed as dist
from onset import mark_onset


async def fetch():
    await asyncio.Event().wait()


def fetch_all():
    mark_onset()
    asyncio.run(fetch())


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    fetch_all()
dist.barrier()
dist.destroy_process_group()
