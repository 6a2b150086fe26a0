"""A stream for each rank, of which none goes on once one has ended."""

import torch
import torch.distributed as dist
from parts import agreed, job, step
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(128):
            yield torch.randn(8, generator=generator), torch.tensor(1)


model, optimizer = job()
for _ in range(2):
    batches = iter(DataLoader(Stream(), batch_size=8))
    while True:
        batch = next(batches, None)
        if agreed(batch is None):
            break
        step(model, optimizer, batch)
dist.destroy_process_group()
