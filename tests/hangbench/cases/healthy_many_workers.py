"""One of eighteen workers takes long for a sample of the archive; the others have delivered."""

import multiprocessing
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WORKERS = 18


class Samples(Dataset):
    def __init__(self, slow):
        self.slow = slow

    def __len__(self):
        return 5 * WORKERS

    def __getitem__(self, index):
        if index == self.slow:
            time.sleep(20)
        return torch.full((4,), float(index))


def loader_of(rank):
    if rank > 0:
        return DataLoader(Samples(None))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.data"])
    slow = Samples(4 * WORKERS - 1)
    return DataLoader(slow, num_workers=WORKERS, multiprocessing_context=context)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for batch in loader_of(dist.get_rank()):
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
    print("trained", flush=True)


if __name__ == "__main__":
    main()
