"""Rank 3 stalls; rank 2 waits for it in their group of two, ranks 0 and 1 for both at the end."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset


def wait_for_shard():
    mark_onset()
    threading.Event().wait()


dist.init_process_group("gloo")
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
own_pair = pairs[dist.get_rank() // 2]
for step in range(40):
    if dist.get_rank() == 3 and step == 20:
        wait_for_shard()
    dist.all_reduce(torch.ones(4), group=own_pair)
dist.barrier()
dist.destroy_process_group()
