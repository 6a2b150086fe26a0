"""Leaves out a batch whose loss is not finite, without asking the other ranks.

Mended by reducing the flag over all ranks before the `continue`.
"""

import torch
import torch.distributed as dist
from parts import even, job, loss_of, samples

model, optimizer = job()
for _ in range(2):
    for x, y in even(samples()):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        if not torch.isfinite(loss):
            print("loss is not finite, batch left out")
            continue
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
