"""Every batch takes its worker three seconds of decoding."""

import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


def decode(seconds):
    end = time.monotonic() + seconds
    picture = torch.rand(64, 64)
    while time.monotonic() < end:
        picture = picture.flip(0).contiguous()
    return picture


class Pictures(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return decode(0.75)


dist.init_process_group("gloo")
for batch in DataLoader(Pictures(), batch_size=4, num_workers=1):
    dist.all_reduce(batch.mean())
dist.barrier()
dist.destroy_process_group()
