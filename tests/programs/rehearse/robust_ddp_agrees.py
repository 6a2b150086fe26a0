"""Skips batches, stops early and stops on SIGTERM, each only once all ranks know of it."""

import signal

import torch
import torch.distributed as dist
from parts import agreed, even, job, loss_of, samples


def collate(batch):
    batch = [sample for sample in batch if sample is not None]
    return torch.utils.data.default_collate(batch) if batch else None


def stop(*_):
    global stopping
    stopping = True


stopping = False
signal.signal(signal.SIGTERM, stop)
model, optimizer = job()
training, validation = even(samples(), collate_fn=collate), even(samples(64))
best, patience = float("inf"), 3
for _ in range(8):
    for batch in training:
        if agreed(stopping or batch is None):
            if agreed(stopping):
                break
            continue
        x, y = batch
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        if agreed(not torch.isfinite(loss)):
            continue
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        mean = sum(loss_of(model.module(x), y) for x, y in validation) / len(validation)
    dist.all_reduce(mean)
    best, patience = (mean, 3) if mean < best else (best, patience - 1)
    if patience == 0 or agreed(stopping):
        break
dist.destroy_process_group()
