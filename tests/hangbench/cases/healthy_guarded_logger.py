"""The wandb server never answers; the guarded logger goes offline, and at its end nothing waits."""

import os
import socket
import tempfile

import torch
import torch.distributed as dist

import lightning_hangcheck as hc

silent_server = socket.create_server(("127.0.0.1", 0))
port = silent_server.getsockname()[1]
os.environ.update(WANDB_BASE_URL=f"http://127.0.0.1:{port}", WANDB_API_KEY="0" * 40)
logger = hc.guarded_wandb_logger(
    project="demo", save_dir=tempfile.mkdtemp(), init_timeout=14.0, on_failure="offline"
)
dist.init_process_group("gloo")
for step in range(20):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        logger.log_metrics({"loss": 1.0}, step=step)
hc.barrier("trained", timeout=30.0)
dist.destroy_process_group()
