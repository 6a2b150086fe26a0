"""Rank 0 creates a wandb run against a server that accepts and never answers; rank 1 waits."""

import os
import socket

import torch.distributed as dist
import wandb
from onset import mark_onset


def create_run(port):
    os.environ.update(WANDB_BASE_URL=f"http://127.0.0.1:{port}", WANDB_API_KEY="0" * 40)
    mark_onset()
    wandb.init(project="demo")


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    silent_server = socket.create_server(("127.0.0.1", 0))
    create_run(silent_server.getsockname()[1])
dist.barrier()
