"""Each rank takes every nth sample itself, so one may have a batch more.

Mended by a DistributedSampler, or by model.join().
"""

import torch.distributed as dist
from parts import job, samples, share, step

model, optimizer = job()
for _ in range(3):
    for batch in share(samples()):
        step(model, optimizer, batch)
dist.destroy_process_group()
