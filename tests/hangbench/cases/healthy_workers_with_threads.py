"""Workers are forked from ranks that have threads of their own, and all goes well."""

import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

finished = threading.Event()


def report_memory():
    while not finished.wait(0.5):
        pass


dist.init_process_group("gloo")
threading.Thread(target=report_memory, daemon=True).start()
for _ in range(3):
    for (batch,) in DataLoader(TensorDataset(torch.ones(200, 4)), batch_size=4, num_workers=2):
        dist.all_reduce(batch)
finished.set()
dist.barrier()
dist.destroy_process_group()
