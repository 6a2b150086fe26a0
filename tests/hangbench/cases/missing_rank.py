"""The scheduler announced three ranks and started two."""

import os
import socket
import subprocess
import sys

import torch.distributed as dist
from onset import mark_onset


def start_rank(rank, port):
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen([sys.executable, __file__], env={**os.environ, **environment})


def find_free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def join():
    mark_onset()
    dist.init_process_group("gloo")


if "RANK" in os.environ:
    join()
    dist.destroy_process_group()
else:
    port = find_free_port()
    for process in [start_rank(0, port), start_rank(1, port)]:
        process.wait()
