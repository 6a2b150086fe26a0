"""Rank 1 fetches a file from a server that is slow to answer; the others' all-reduce times out."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from onset import mark_onset


def train_step():
    gradient = torch.ones(1000)
    dist.all_reduce(gradient)
    time.sleep(0.05)


def fetch_metadata():
    mark_onset()
    time.sleep(600)


dist.init_process_group("gloo", timeout=timedelta(seconds=15))
for _ in range(40):
    train_step()
if dist.get_rank() == 1:
    fetch_metadata()
for _ in range(40):
    train_step()
dist.destroy_process_group()
