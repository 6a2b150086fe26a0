"""Rank 0 is a thousand operations ahead of its GPU while rank 1 computes for 40 s."""

import time

import queued
import torch
import torch.distributed as dist


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def tokenize(seconds):
    end = time.monotonic() + seconds
    words = {}
    while time.monotonic() < end:
        for number in range(2000):
            words[str(number % 97)] = words.get(str(number % 97), 0) + 1
    return words


dist.init_process_group(queued.BACKEND)
for step in range(1100):
    if step == 60 and dist.get_rank() == 1:
        tokenize(40)
    loss = training_step(step)
    if step == 50:
        loss.item()
queued.synchronize()
dist.barrier()
dist.destroy_process_group()
print("trained", flush=True)
