"""Rank 0 validates alone for 45 s; rank 1 waits in a barrier, on its GPU."""

import time

import queued
import torch
import torch.distributed as dist


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def validate(seconds):
    model = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        model(torch.ones(2, 8, 16))


dist.init_process_group(queued.BACKEND)
for step in range(40):
    training_step(step)
queued.synchronize()
if dist.get_rank() == 0:
    validate(45)
dist.barrier()
dist.destroy_process_group()
print("trained", flush=True)
