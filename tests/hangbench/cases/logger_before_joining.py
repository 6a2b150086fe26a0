"""Rank 0 creates a wandb run before it joins the process group; the others wait for it to join."""

import os
import socket

import torch.distributed as dist
import wandb
from onset import mark_onset


def create_run(port):
    os.environ.update(WANDB_BASE_URL=f"http://127.0.0.1:{port}", WANDB_API_KEY="0" * 40)
    mark_onset()
    wandb.init(project="demo")


if os.environ["RANK"] == "0":
    silent_server = socket.create_server(("127.0.0.1", 0))
    create_run(silent_server.getsockname()[1])
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
