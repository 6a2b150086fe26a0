"""Rank 1 keeps a lock on the cache while it trains; a worker of rank 0 wants it to fill a gap."""

import fcntl
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.utils.data import DataLoader, Dataset

CACHE = Path(tempfile.gettempdir()) / "worker_wants_lock_of_other_rank.lock"


class Cached(Dataset):
    def __init__(self, missing):
        self.missing = missing

    def __len__(self):
        return 120

    def __getitem__(self, number):
        if number in self.missing:
            self.fill(number)
        return torch.full((8,), float(number))

    def fill(self, number):
        with CACHE.open("a") as cache:
            mark_onset()
            fcntl.flock(cache, fcntl.LOCK_EX)
            cache.write(f"{number}\n")


def main():
    dist.init_process_group("gloo")
    rank, kept = dist.get_rank(), None
    loader = DataLoader(Cached([80] if rank == 0 else []), batch_size=4, num_workers=1)
    for step, batch in enumerate(loader):
        if step == 2 and rank == 1:
            kept = CACHE.open("a")
            fcntl.flock(kept, fcntl.LOCK_EX)
        time.sleep(0.05)
        dist.all_reduce(batch)
    if kept is not None:
        kept.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
