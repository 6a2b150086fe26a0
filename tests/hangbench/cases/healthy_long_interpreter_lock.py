"""Rank 0 sorts a long list in one call, which keeps the interpreter lock for seconds."""

import random

import torch
import torch.distributed as dist


def sort_by_length():
    lengths = [random.random() for _ in range(4_000_000)]
    lengths.sort()


dist.init_process_group("gloo")
for _ in range(2):
    if dist.get_rank() == 0:
        sort_by_length()
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
