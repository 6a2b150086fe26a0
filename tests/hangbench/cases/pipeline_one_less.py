"""In a pipeline of four stages the second one leaves out a micro-batch once."""

import torch
import torch.distributed as dist
from onset import mark_onset

MICRO_BATCHES = 4


def forward(rank, last):
    batch = torch.ones(8)
    if rank > 0:
        dist.recv(batch, src=rank - 1)
    if rank < last:
        dist.send(batch * 2, dst=rank + 1)


def backward(rank, last):
    gradient = torch.ones(8)
    if rank < last:
        dist.recv(gradient, src=rank + 1)
    if rank > 0:
        dist.send(gradient / 2, dst=rank - 1)


dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
for step in range(40):
    ready = MICRO_BATCHES
    if rank == 1 and step == 20:
        mark_onset()
        ready -= 1
    for _ in range(ready):
        forward(rank, last)
    for _ in range(ready):
        backward(rank, last)
dist.destroy_process_group()
