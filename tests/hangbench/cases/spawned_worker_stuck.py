"""A spawned DataLoader worker of rank 1 never returns its sample."""

import os
import threading

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if os.environ["RANK"] == "1" and index == 40:
            mark_onset()
            threading.Event().wait()
        return torch.ones(4)


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(Samples(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    for batch in loader:
        dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
