"""Rank 1 reads a share that does not answer; rank 0 runs ahead of its GPU and asks for its loss."""

import os
import tempfile
from pathlib import Path

import queued
import torch
import torch.distributed as dist
from onset import mark_onset


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def read_shard(path):
    mark_onset()
    return path.read_bytes()


dist.init_process_group(queued.BACKEND)
for step in range(200):
    loss = training_step(step)
    if step == 60 and dist.get_rank() == 1:
        shard = Path(tempfile.mkdtemp()) / "shard"
        os.mkfifo(shard)
        read_shard(shard)
    if step % 50 == 49:
        loss.item()
dist.destroy_process_group()
