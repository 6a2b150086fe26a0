"""A DataLoader worker of rank 1 never returns its sample; rank 0 waits in an all-reduce."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if dist.get_rank() == 1 and index > 8:
            mark_onset()
            threading.Event().wait()
        return torch.ones(4)


dist.init_process_group("gloo")
for batch in DataLoader(Samples(), batch_size=4, num_workers=2):
    dist.all_reduce(batch)
