"""Rank 0 asks for a choice on an input that is a pipe, as under a scheduler: nobody answers."""

import os
import sys

import torch
import torch.distributed as dist
from onset import mark_onset


def ask_for_account():
    mark_onset()
    return input("Enter your choice: ")


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    reading_end, writing_end = os.pipe()
    sys.stdin = os.fdopen(reading_end)
    ask_for_account()
dist.barrier()
dist.destroy_process_group()
