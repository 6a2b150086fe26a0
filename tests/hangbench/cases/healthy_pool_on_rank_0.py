"""Rank 0 has a pool of processes prepare samples for 12 s, and waits for them."""

import hashlib
import multiprocessing
import time

import torch.distributed as dist


def prepare(seconds):
    end = time.monotonic() + seconds
    digest = b""
    while time.monotonic() < end:
        digest = hashlib.sha256(digest).digest()
    return digest


def prepare_all():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return pool.map(prepare, [12, 12])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        prepare_all()
    dist.barrier()
    dist.destroy_process_group()
