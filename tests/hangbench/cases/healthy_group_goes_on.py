"""Rank 2 has done its part and leaves; ranks 0 and 1 go on in a group of their own."""

import time

import torch
import torch.distributed as dist


def compute(seconds):
    matrix = torch.randn(200, 200)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        matrix = (matrix @ matrix).tanh()


dist.init_process_group("gloo")
trainers = dist.new_group([0, 1])
dist.all_reduce(torch.ones(4))
if dist.get_rank() < 2:
    for _ in range(3):
        if dist.get_rank() == 0:
            compute(12)
        dist.all_reduce(torch.ones(4), group=trainers)
