"""Rank 0 alone makes a group, which needs all; the other waits for its GPU."""

import os

import queued
import torch
import torch.distributed as dist
from onset import mark_onset


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def form_evaluation_group():
    mark_onset()
    return dist.new_group([0, 1])


os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # as of ranks that connect eagerly
dist.init_process_group(queued.BACKEND)
for step in range(40):
    training_step(step)
queued.synchronize()
if dist.get_rank() == 0:
    form_evaluation_group()
for step in range(40):
    training_step(step)
queued.loss().item()
dist.destroy_process_group()
