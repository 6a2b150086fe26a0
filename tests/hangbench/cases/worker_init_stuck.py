"""Workers of rank 1 open their archive when they start, and never come back from it."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


def open_archive(worker):
    if dist.get_rank() == 1:
        mark_onset()
        threading.Event().wait()


dist.init_process_group("gloo")
dist.barrier()
samples = TensorDataset(torch.ones(64, 4))
for (batch,) in DataLoader(samples, batch_size=4, num_workers=2, worker_init_fn=open_archive):
    dist.all_reduce(batch)
dist.destroy_process_group()
