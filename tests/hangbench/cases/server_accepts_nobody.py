"""Rank 1 connects to a sample server that has stopped accepting; its queue is full."""

import socket

import torch
import torch.distributed as dist
from onset import mark_onset


def start_server_that_accepts_nobody():
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = []
    for _ in range(8):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(server.getsockname())
        waiting.append(client)
    return server, waiting


def connect_to_sample_server(address):
    mark_onset()
    return socket.create_connection(address)


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    server, waiting = start_server_that_accepts_nobody()
    connect_to_sample_server(server.getsockname())
dist.barrier()
dist.destroy_process_group()
