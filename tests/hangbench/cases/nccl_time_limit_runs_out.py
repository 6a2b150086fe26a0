"""Rank 1 fetches a file from a server that is slow to answer; NCCL aborts the others."""

import time
from datetime import timedelta

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist
from onset import mark_onset


def train_step():
    gradient = torch.ones(1000, device="cuda")
    dist.all_reduce(gradient)
    time.sleep(0.05)


def fetch_metadata():
    mark_onset()
    time.sleep(600)


torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=timedelta(seconds=15))
for _ in range(40):
    train_step()
if dist.get_rank() == 1:
    fetch_metadata()
for _ in range(40):
    train_step()
dist.destroy_process_group()
