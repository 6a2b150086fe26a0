"""Rank 0 waits for a program to end whose output it does not read: the pipe is full."""

import subprocess
import sys

import torch
import torch.distributed as dist
from onset import mark_onset


def tokenize_with_program():
    chatty = [sys.executable, "-c", "print('token ' * 1_000_000)"]
    mark_onset()
    with subprocess.Popen(chatty, stdout=subprocess.PIPE) as program:
        program.wait()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    tokenize_with_program()
dist.barrier()
dist.destroy_process_group()
