"""A task that fills an asyncio queue fails; who takes from the queue awaits it for ever."""

import asyncio

import torch
import torch.distributed as dist
import torch.nn as nn
from onset import mark_onset


async def produce(queue, rows_of_shards):
    for number, rows in enumerate(rows_of_shards):
        await asyncio.sleep(0.02)
        if not rows:
            mark_onset()
            raise ValueError(f"shard {number} is empty")
        await queue.put(torch.randn(rows, 8))
    await queue.put(None)


async def train(rank):
    rows = [16] * 60
    if rank == 2:
        rows[25] = 0
    queue = asyncio.Queue(4)
    producer = asyncio.create_task(produce(queue, rows))
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while (batch := await queue.get()) is not None:
        model(batch).pow(2).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    await producer


def main():
    dist.init_process_group("gloo")
    asyncio.run(train(dist.get_rank()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
