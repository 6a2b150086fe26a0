"""Rank 1 keeps the lock of its cache while it asks for a batch, which a worker wants to put there."""

import multiprocessing

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset):
    def __init__(self, lock):
        self.lock = lock

    def __len__(self):
        return 160

    def __getitem__(self, index):
        if index % 40 == 39:
            self.remember(index)
        return torch.randn(4)

    def remember(self, index):
        with self.lock:
            return index


def train(loader, lock):
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step, inputs in enumerate(loader):
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 1 and step == 24:
            mark_onset()
            lock.acquire()


def main():
    dist.init_process_group("gloo")
    lock = multiprocessing.Lock()
    train(DataLoader(Cached(lock), batch_size=4, num_workers=2), lock)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
