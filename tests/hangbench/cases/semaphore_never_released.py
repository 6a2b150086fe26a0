"""One rank at a time may load its weights; one that fails to keeps the semaphore."""

import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel


def load_backbone(rank, gate, weights):
    gate.acquire()
    model = nn.Linear(16, 1)
    model.load_state_dict(torch.load(weights[rank]))
    gate.release()
    return model


def run(rank, store, gate, weights):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=3)
    time.sleep([1.0, 0.5, 1.0][rank])
    try:
        model = load_backbone(rank, gate, weights)
    except FileNotFoundError:
        mark_onset()
        model = nn.Linear(16, 1)
    dist.barrier()
    model = DistributedDataParallel(model)
    model(torch.randn(4, 16)).mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    there = os.path.join(folder, "weights.pt")
    torch.save(nn.Linear(16, 1).state_dict(), there)
    gate = mp.get_context("spawn").Semaphore(1)
    weights = [there, os.path.join(folder, "absent.pt"), there]
    mp.spawn(run, args=(os.path.join(folder, "store"), gate, weights), nprocs=3)
