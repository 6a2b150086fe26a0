"""Rank 0 writes its checkpoint in small pieces for 40 s; rank 1 waits in synchronize."""

import tempfile
import time
from pathlib import Path

import queued
import torch
import torch.distributed as dist


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def save_slowly(path, seconds):
    end = time.monotonic() + seconds
    with path.open("wb", buffering=0) as file:
        while time.monotonic() < end:
            file.write(b"0" * 65536)
            time.sleep(0.2)


dist.init_process_group(queued.BACKEND)
for step in range(40):
    training_step(step)
if dist.get_rank() == 0:
    queued.synchronize()
    save_slowly(Path(tempfile.mkdtemp()) / "last.ckpt", 40)
for step in range(40):
    training_step(step)
queued.synchronize()
dist.destroy_process_group()
print("trained", flush=True)
