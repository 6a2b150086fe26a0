"""Rank 1's DataLoader needs 6 s for a batch; rank 0 asks its GPU for the loss of each."""

import time

import queued
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        end = time.monotonic() + (6 if self.rank == 1 else 0.1)
        while time.monotonic() < end:
            sorted(range(3000), key=lambda number: -number)
        return torch.ones(8)


dist.init_process_group(queued.BACKEND)
samples = Samples()
samples.rank = dist.get_rank()
for batch in DataLoader(samples, batch_size=1, num_workers=1):
    dist.all_reduce(batch.to(queued.DEVICE))
    queued.loss().item()
dist.destroy_process_group()
print("trained", flush=True)
