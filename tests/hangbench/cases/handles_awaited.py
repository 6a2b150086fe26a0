"""Rank 2 stalls between two steps; the others wait at the end of reductions that they started."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset


def fetch_next_shard():
    mark_onset()
    threading.Event().wait()


def reduce_in_buckets(gradients):
    handles = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for handle in handles:
        handle.wait()


dist.init_process_group("gloo")
for step in range(40):
    if dist.get_rank() == 2 and step == 20:
        fetch_next_shard()
    reduce_in_buckets([torch.ones(4) for _ in range(6)])
dist.destroy_process_group()
