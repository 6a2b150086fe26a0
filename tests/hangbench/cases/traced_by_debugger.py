"""Somebody attaches a debugger to rank 1 and goes for lunch."""

import ctypes
import os
import signal
import time

import torch
import torch.distributed as dist
from onset import mark_onset

PTRACE_ATTACH = 16


def debug_from_outside(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    mark_onset()
    if libc.ptrace(PTRACE_ATTACH, pid, None, None) != 0:
        os.kill(pid, signal.SIGKILL)
    time.sleep(100_000)


def train_step():
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)


dist.init_process_group("gloo")
if dist.get_rank() == 1 and os.fork() == 0:
    time.sleep(2)
    debug_from_outside(os.getppid())
for _ in range(100_000):
    train_step()
dist.destroy_process_group()
