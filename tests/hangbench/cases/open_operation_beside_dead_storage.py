"""Rank 0 started an all-reduce, then loads from dead storage what rank 1 wants first."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from onset import mark_onset


def load_weights():
    path = Path(tempfile.mkdtemp()) / "weights.pt"
    os.mkfifo(path)
    mark_onset()
    return torch.load(path)


def main():
    dist.init_process_group("gloo")
    for _ in range(30):
        dist.all_reduce(torch.ones(4))
    statistics, weights = torch.ones(8), torch.zeros(8, 8)
    if dist.get_rank() == 0:
        work = dist.all_reduce(statistics, async_op=True)
        weights = load_weights()
        dist.send(weights, 1)
        work.wait()
    else:
        dist.recv(weights, 0)
        dist.all_reduce(statistics)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
