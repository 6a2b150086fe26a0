"""In a ring of three ranks everybody receives before sending."""

import torch
import torch.distributed as dist
from onset import mark_onset


def pass_on(rank, size):
    received = torch.empty(4)
    dist.recv(received, src=(rank - 1) % size)
    dist.send(torch.ones(4), dst=(rank + 1) % size)


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
mark_onset()
pass_on(dist.get_rank(), dist.get_world_size())
dist.destroy_process_group()
