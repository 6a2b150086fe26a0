"""In a pipeline of four the first rank gets no batch; each other waits for the one before."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset


def read_next_batch(step):
    if step == 20:
        mark_onset()
        threading.Event().wait()
    return torch.ones(4)


def receive_activations(rank):
    activations = torch.empty(4)
    dist.recv(activations, src=rank - 1)
    return activations


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(40):
    batch = read_next_batch(step) if rank == 0 else receive_activations(rank)
    if rank < dist.get_world_size() - 1:
        dist.send(batch, dst=rank + 1)
dist.barrier()
dist.destroy_process_group()
