"""Rank 1 never leaves a loop; rank 0 waits in an all-reduce."""

import torch
import torch.distributed as dist
from onset import mark_onset


def find_next_prime(number):
    while True:
        number = (number * 7 + 1) % 1_000_003


dist.init_process_group("gloo")
for step in range(1000):
    if dist.get_rank() == 1 and step == 20:
        mark_onset()
        find_next_prime(2)
    dist.all_reduce(torch.ones(4))
