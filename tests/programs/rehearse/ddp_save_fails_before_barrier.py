"""Goes on where a save of rank 0 fails, and leaves out the barrier behind it.

Mended by a `finally` around the barrier.
"""

import tempfile

import torch
import torch.distributed as dist
from parts import even, job, samples, step

model, optimizer = job()
folder = tempfile.mkdtemp()
for epoch in range(2):
    for batch in even(samples()):
        step(model, optimizer, batch)
    try:
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), f"{folder}/{epoch}.pt")
        dist.barrier()
    except OSError as error:
        print("not saved:", error)
dist.destroy_process_group()
