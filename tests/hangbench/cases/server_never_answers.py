"""Rank 0 asks a server for the model's card; the server takes the question and never answers."""

import socket
import urllib.request

import torch
import torch.distributed as dist
from onset import mark_onset


def fetch_card(port):
    mark_onset()
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/api/models/x").read()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    silent_server = socket.create_server(("127.0.0.1", 0))
    fetch_card(silent_server.getsockname()[1])
dist.barrier()
dist.destroy_process_group()
