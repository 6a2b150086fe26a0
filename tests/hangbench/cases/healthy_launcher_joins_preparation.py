"""Ranks wait for an event that their launcher sets once its preparation process has ended."""

import multiprocessing
import os
import socket
import time

import torch
import torch.distributed as dist


def prepare():
    time.sleep(20)  # the tokens are made on another cluster


def train(rank, ready, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo")
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    ready.wait()
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    print("trained", flush=True)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ready, preparation = context.Event(), context.Process(target=prepare)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [context.Process(target=train, args=(rank, ready, port)) for rank in range(2)]
    for process in (preparation, *ranks):
        process.start()
    preparation.join()
    ready.set()
    for process in ranks:
        process.join()
    raise SystemExit(max(process.exitcode for process in ranks))
