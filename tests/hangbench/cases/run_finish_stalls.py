"""Rank 0 closes its wandb run, but the service process behind it is frozen."""

import signal
import tempfile

import psutil
import torch
import torch.distributed as dist
import wandb
from onset import mark_onset


def freeze_service():
    for child in psutil.Process().children(recursive=True):
        if "wandb-core" in child.name():
            child.send_signal(signal.SIGSTOP)


def close_run(run):
    mark_onset()
    run.finish()


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    run = wandb.init(project="demo", mode="offline", dir=tempfile.mkdtemp())
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    freeze_service()
    close_run(run)
dist.barrier()
dist.destroy_process_group()
