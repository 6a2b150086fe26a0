"""A pipeline of three runs one forward, one backward: two stages send to each other at once."""

import torch
import torch.distributed as dist
from onset import mark_onset

MICROBATCHES, SHAPE = 6, (256, 2048)
rank, last = 0, 2


def forward():
    activations = torch.ones(SHAPE)
    if rank > 0:
        dist.recv(activations, src=rank - 1)
    if rank < last:
        dist.send(activations, dst=rank + 1)


def backward():
    gradients = torch.ones(SHAPE)
    if rank < last:
        dist.recv(gradients, src=rank + 1)
    if rank > 0:
        dist.send(gradients, dst=rank - 1)


def one_forward_one_backward():
    for _ in range(last - rank):
        forward()
    for _ in range(MICROBATCHES - (last - rank)):
        forward()
        backward()
    for _ in range(last - rank):
        backward()


dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
dist.barrier()
mark_onset()
for _ in range(8):
    one_forward_one_backward()
dist.destroy_process_group()
