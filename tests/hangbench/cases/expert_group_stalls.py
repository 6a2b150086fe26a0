"""Rank 3 stalls; rank 2 waits for it in a group of two, ranks 0 and 1 for both among all four."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset


def load_expert():
    mark_onset()
    threading.Event().wait()


dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
for step in range(20):
    if rank == 3 and step == 10:
        load_expert()
    dist.all_reduce(torch.ones(3), group=pairs[rank // 2], async_op=True).wait()
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
