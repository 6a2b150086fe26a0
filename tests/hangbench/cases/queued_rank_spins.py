"""Rank 2 searches for ever; the others are steps ahead of their GPUs and wait in synchronize."""

import queued
import torch
import torch.distributed as dist
from onset import mark_onset


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def pack_samples(lengths):
    mark_onset()
    while sum(lengths) != 7:
        lengths = [length + 2 - length % 2 for length in lengths]
    return lengths


dist.init_process_group(queued.BACKEND)
for step in range(90):
    training_step(step)
    if step == 30 and dist.get_rank() == 2:
        pack_samples([2, 4])
    if step % 40 == 39:
        queued.synchronize()
dist.destroy_process_group()
