"""The script joins its ranks before it reads what rank 0 hands back, which no pipe can hold."""

import os

import torch
import torch.distributed as dist
from onset import mark_onset


def train(rank, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    weights = torch.zeros(256, 256)
    for _ in range(20):
        gradient = torch.randn(256, 256)
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
    if rank == 0:
        results.put(weights.tolist())
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mark_onset()


if __name__ == "__main__":
    results = torch.multiprocessing.get_context("spawn").Queue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    port = store.port
    del store
    torch.multiprocessing.spawn(train, (port, results), nprocs=2)
    print(len(results.get()))
