"""Spawned ranks meet at a barrier of multiprocessing after each epoch; one of them forgets to."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from onset import mark_onset


def train_epoch():
    for _ in range(10):
        dist.all_reduce(torch.ones(4))


def end_epoch(rank, epoch, meeting):
    if rank == 1 and epoch == 3:
        mark_onset()
        return
    meeting.wait()


def run(rank, store, meeting):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=3)
    for epoch in range(6):
        train_epoch()
        end_epoch(rank, epoch, meeting)
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    meeting = mp.get_context("spawn").Barrier(3)
    mp.spawn(run, args=(os.path.join(folder, "store"), meeting), nprocs=3)
