"""A DataLoader worker of rank 0 never returns a sample; the other rank waits for its GPU."""

import threading

import queued
import torch
import torch.distributed as dist
from onset import mark_onset
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        if index == 96 and self.rank == 0:
            mark_onset()
            threading.Event().wait()
        return torch.ones(8)


dist.init_process_group(queued.BACKEND)
samples = Samples()
samples.rank = dist.get_rank()
for batch in DataLoader(samples, batch_size=4, num_workers=1):
    dist.all_reduce(batch.to(queued.DEVICE))
    queued.loss().item()
dist.destroy_process_group()
