"""A DataLoader has a time limit: its worker hangs in a sample, and the rank goes on without workers."""

import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, damaged):
        self.damaged = damaged

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.damaged and index == 3:
            threading.Event().wait()
        return torch.ones(4)


dist.init_process_group("gloo")
rank = dist.get_rank()
steps = 0
try:
    for batch in DataLoader(Samples(rank == 1), num_workers=1, timeout=18):
        dist.all_reduce(batch)
        steps += 1
except RuntimeError as error:
    print(f"no more workers: {error}", flush=True)
for _ in range(steps, 8):
    dist.all_reduce(torch.ones(1, 4))
print(f"rank {rank} done", flush=True)
dist.destroy_process_group()
