"""Rank 0 asks a server that never answers; the other rank waits in a barrier, on its GPU."""

import socket
import urllib.request

import queued
import torch
import torch.distributed as dist
from onset import mark_onset


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def fetch_prompts(port):
    mark_onset()
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/prompts").read()


dist.init_process_group(queued.BACKEND)
for step in range(60):
    training_step(step)
if dist.get_rank() == 0:
    silent_server = socket.create_server(("127.0.0.1", 0))
    fetch_prompts(silent_server.getsockname()[1])
dist.barrier()
dist.destroy_process_group()
