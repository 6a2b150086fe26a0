"""Rank 1 gathers a last batch that is shorter; all go on, and wait for their GPUs."""

import queued
import torch
import torch.distributed as dist
from onset import mark_onset


def gather_predictions(step):
    short = step == 40 and dist.get_rank() == 1
    if short:
        mark_onset()
    predictions = torch.ones(3 if short else 8, device=queued.DEVICE)
    gathered = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, predictions)


dist.init_process_group(queued.BACKEND)
for step in range(120):
    gather_predictions(step)
    if step % 50 == 49:
        queued.loss().tolist()
dist.destroy_process_group()
