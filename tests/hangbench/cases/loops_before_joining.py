"""Rank 0 looks for a free port among ports that are all taken; rank 1 waits for it."""

import os

import torch.distributed as dist
from onset import mark_onset


def find_free_port(taken):
    port = 0
    while port in taken:
        port = (port + 1) % 1000
    return port


if os.environ["RANK"] == "0":
    mark_onset()
    find_free_port(set(range(1000)))
dist.init_process_group("gloo")
dist.destroy_process_group()
