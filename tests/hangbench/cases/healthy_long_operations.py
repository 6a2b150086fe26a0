"""Each step of rank 0 is one matrix product of some seconds, in the same line every time."""

import time

import torch
import torch.distributed as dist


def size_that_takes(seconds):
    size, took = 512, 0.0
    while took < seconds and size < 8192:
        size += size // 4
        begin = time.monotonic()
        torch.ones(size, size) @ torch.ones(size, size)
        took = time.monotonic() - begin
    return size


def multiply(size):
    return torch.ones(size, size) @ torch.ones(size, size)


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    size = size_that_takes(seconds=4)
for _ in range(4):
    if dist.get_rank() == 0:
        multiply(size)
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
