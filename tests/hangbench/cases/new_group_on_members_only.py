"""Rank 0 forms a group of its own, which is collective over all ranks."""

import torch
import torch.distributed as dist
from onset import mark_onset


def form_evaluation_group():
    if dist.get_rank() == 0:
        mark_onset()
        dist.new_group([0, 1])


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
form_evaluation_group()
dist.barrier()
dist.destroy_process_group()
