"""Rank 1's loader worker takes its own lock twice, after its first batches went well."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset):
    def __init__(self, rank):
        self.rank = rank
        self.lock = threading.Lock()
        self.kept = {}

    def __len__(self):
        return 160

    def __getitem__(self, index):
        with self.lock:
            if index not in self.kept:
                self.kept[index] = torch.randn(4)
            if self.rank == 1 and index == 90:
                mark_onset()
                return self.neighbour(index)
            return self.kept[index]

    def neighbour(self, index):
        with self.lock:
            return self.kept[index - 1]


def train(loader):
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for inputs in loader:
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    train(DataLoader(Cached(dist.get_rank()), batch_size=4, num_workers=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
