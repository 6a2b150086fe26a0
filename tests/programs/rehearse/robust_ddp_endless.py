"""A stream without end for each rank, and a number of steps that is the same on all."""

import itertools

import torch
import torch.distributed as dist
from parts import job, step
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(dist.get_rank())
        while True:
            yield torch.randn(8, generator=generator), torch.tensor(1)


model, optimizer = job()
for batch in itertools.islice(DataLoader(Stream(), batch_size=8), 20):
    step(model, optimizer, batch)
dist.destroy_process_group()
