"""Rank 0 broadcasts its configuration to ranks that don't ask for it."""

import torch
import torch.distributed as dist
from onset import mark_onset


def share_configuration():
    if dist.get_rank() == 0:
        mark_onset()
        dist.broadcast_object_list([{"learning_rate": 0.1}], src=0)
        dist.barrier()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
share_configuration()
for _ in range(20):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
