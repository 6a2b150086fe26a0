"""Shares that may be uneven, within model.join()."""

import torch.distributed as dist
from parts import job, samples, share, step

model, optimizer = job()
for _ in range(2):
    with model.join():
        for batch in share(samples()):
            step(model, optimizer, batch)
dist.destroy_process_group()
