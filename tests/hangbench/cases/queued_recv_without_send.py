"""Rank 1 posts a receive for which rank 0 never sends; both run on, rank 1 asks its GPU."""

import queued
import torch
import torch.distributed as dist
from onset import mark_onset


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def receive_activations():
    mark_onset()
    dist.recv(torch.empty(8, device=queued.DEVICE), src=0)


dist.init_process_group(queued.BACKEND)
for step in range(40):
    training_step(step)
queued.synchronize()
if dist.get_rank() == 1:
    receive_activations()
queued.loss().item()
dist.barrier()
dist.destroy_process_group()
