"""A DataLoader worker of rank 1 reads a shard from a download that has died."""

import os

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.utils.data import DataLoader, IterableDataset


def read_shard():
    download, writing_end = os.pipe()
    mark_onset()
    data = os.read(download, 1 << 20)
    os.close(writing_end)
    return data


class Shards(IterableDataset):
    def __iter__(self):
        for sample in range(64):
            if dist.get_rank() == 1 and sample == 40:
                read_shard()
            yield torch.ones(4)


dist.init_process_group("gloo")
for batch in DataLoader(Shards(), batch_size=4, num_workers=1):
    dist.all_reduce(batch)
dist.destroy_process_group()
