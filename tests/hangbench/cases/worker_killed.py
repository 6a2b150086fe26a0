"""The kernel kills a DataLoader worker of rank 1, as when /dev/shm or memory runs out."""

import os
import signal

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if dist.get_rank() == 1 and index == 40:
            mark_onset()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(4)


dist.init_process_group("gloo")
for batch in DataLoader(Samples(), batch_size=4, num_workers=2):
    dist.all_reduce(batch)
dist.destroy_process_group()
