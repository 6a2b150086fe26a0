"""A stream repeats its shard until it finds a long text, and rank 1's shard has none."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.utils.data import DataLoader, IterableDataset


def long_texts(texts):
    while True:
        for text in texts:
            if len(text) > 100:
                yield torch.ones(4)


class Texts(IterableDataset):
    def __iter__(self):
        for _ in range(40):
            yield torch.ones(4)
        if dist.get_rank() == 1:
            mark_onset()
        yield from long_texts(["short"] * 50 if dist.get_rank() == 1 else ["long" * 50])


dist.init_process_group("gloo")
for batch in DataLoader(Texts(), batch_size=4, num_workers=1):
    dist.all_reduce(batch)
dist.destroy_process_group()
