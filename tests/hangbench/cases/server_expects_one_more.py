"""Rank 0 collects as many gradients from each worker; rank 2 has one batch less, and is done."""

import torch
import torch.distributed as dist
from onset import mark_onset

ROUNDS = 30


def serve(workers):
    weights, gradient = torch.zeros(8), torch.zeros(8)
    for _ in range(ROUNDS):
        for worker in workers:
            dist.recv(gradient, worker)
            weights -= gradient
        for worker in workers:
            dist.send(weights, worker)


def work(rounds):
    weights = torch.zeros(8)
    for _ in range(rounds):
        dist.send(weights + 1, 0)
        dist.recv(weights, 0)


dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    serve(range(1, dist.get_world_size()))
else:
    work(ROUNDS - (rank == 2))
    if rank == 2:
        mark_onset()
dist.barrier()
dist.destroy_process_group()
