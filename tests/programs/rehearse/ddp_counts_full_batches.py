"""Reduces statistics of full batches only; the last batch may be full on one rank alone.

Mended by reducing at every batch, or by drop_last=True.
"""

import torch.distributed as dist
from parts import job, samples, share, step

model, optimizer = job()
for _ in range(2):
    for batch in share(samples()):
        loss = step(model, optimizer, batch)
        if len(batch[0]) == 8:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
dist.barrier()
dist.destroy_process_group()
