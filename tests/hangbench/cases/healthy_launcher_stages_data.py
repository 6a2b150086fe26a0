"""An own launcher: three training processes wait for the launcher to stage the data set, then train."""

import multiprocessing as mp
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn


def stage_data(seconds):
    time.sleep(seconds)  # a copy from the object store by another service
    return {"shards": 4}


def train(rank, world, asked, staged, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        if epoch == 1:
            asked.set()
            staged.wait()
        for _ in range(10):
            loss = model(torch.randn(16, 8)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    asked, staged, world = context.Event(), context.Event(), 3
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        context.Process(target=train, args=(r, world, asked, staged, port)) for r in range(world)
    ]
    for process in ranks:
        process.start()
    asked.wait()
    stage_data(15)
    staged.set()
    for process in ranks:
        process.join()
    raise SystemExit(max(process.exitcode for process in ranks))
