"""Each DataLoader worker of rank 1 reads its index for 12 s before its first sample."""

import json
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def read_index(worker):
    end = time.monotonic() + 12
    while dist.get_rank() == 1 and time.monotonic() < end:
        json.loads(json.dumps(list(range(1000))))


dist.init_process_group("gloo")
samples = TensorDataset(torch.ones(64, 4))
for (batch,) in DataLoader(samples, batch_size=4, num_workers=2, worker_init_fn=read_index):
    dist.all_reduce(batch)
dist.barrier()
dist.destroy_process_group()
