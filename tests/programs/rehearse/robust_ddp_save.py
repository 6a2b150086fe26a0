"""Tells all ranks whether the save of rank 0 went well, and ends on all where it did not."""

import tempfile

import torch
import torch.distributed as dist
from parts import agreed, even, job, samples, step

model, optimizer = job()
folder = tempfile.mkdtemp()
for epoch in range(2):
    for batch in even(samples()):
        step(model, optimizer, batch)
    failed = False
    if dist.get_rank() == 0:
        try:
            torch.save(model.state_dict(), f"{folder}/{epoch}.pt")
        except OSError:
            failed = True
    if agreed(failed):
        raise RuntimeError("not saved")
dist.destroy_process_group()
