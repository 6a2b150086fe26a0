"""Rank 1 refreshes its weights by a broadcast of its own; all run on until they read a loss."""

import queued
import torch
import torch.distributed as dist
from onset import mark_onset


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def refresh_weights():
    mark_onset()
    dist.broadcast(torch.ones(16, device=queued.DEVICE), src=1)


dist.init_process_group(queued.BACKEND)
for step in range(120):
    loss = training_step(step)
    if step == 60 and dist.get_rank() == 1:
        refresh_weights()
    if step % 50 == 49:
        loss.item()
dist.destroy_process_group()
