"""Rank 1 draws learning rates until one is below its limit, which is below them all."""

import random

import torch
import torch.distributed as dist
from onset import mark_onset

LIMITS = {0: 0.5, 1: 0.0}


def draw_rate():
    return random.uniform(0.1, 1.0)


def is_low(rate):
    return rate < LIMITS[dist.get_rank()]


def choose_rate():
    while True:
        rate = draw_rate()
        if is_low(rate):
            return rate


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    mark_onset()
choose_rate()
dist.barrier()
dist.destroy_process_group()
