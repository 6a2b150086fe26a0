"""One of rank 0's eighteen workers takes a lock twice; the others have delivered."""

import multiprocessing
import threading

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WORKERS = 18


class Samples(Dataset):
    def __init__(self, bad):
        self.bad = bad
        self.size = 5 * WORKERS

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == self.bad:
            self.read_archive()
        return torch.full((4,), float(index))

    def read_archive(self):
        mark_onset()
        index = threading.Lock()
        with index:
            index.acquire()


def loader_of(rank):
    if rank > 0:
        return DataLoader(Samples(None))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.data"])
    samples = Samples(4 * WORKERS - 1)
    return DataLoader(samples, num_workers=WORKERS, multiprocessing_context=context)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for batch in loader_of(dist.get_rank()):
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
