"""Rank 2 is killed as the kernel does when memory is short; the others wait for their GPUs."""

import os
import signal

import queued
import torch
import torch.distributed as dist
from onset import mark_onset


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def grow_cache():
    mark_onset()
    os.kill(os.getpid(), signal.SIGKILL)


dist.init_process_group(queued.BACKEND)
for step in range(200):
    loss = training_step(step)
    if step == 60 and dist.get_rank() == 2:
        grow_cache()
    if step % 50 == 49:
        loss.item()
dist.destroy_process_group()
