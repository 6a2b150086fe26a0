"""Rank 1 waits for an event that nobody sets; rank 0 waits in an all-reduce."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset


def wait_for_shard():
    mark_onset()
    threading.Event().wait()


dist.init_process_group("gloo")
for step in range(1000):
    if dist.get_rank() == 1 and step == 20:
        wait_for_shard()
    dist.all_reduce(torch.ones(4))
