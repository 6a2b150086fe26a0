"""Ranks 1 and 2 of four wait for the same shard; the others wait in an all-reduce."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset


def wait_for_shard():
    mark_onset()
    threading.Event().wait()


dist.init_process_group("gloo")
for step in range(40):
    if dist.get_rank() in (1, 2) and step == 20:
        wait_for_shard()
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
