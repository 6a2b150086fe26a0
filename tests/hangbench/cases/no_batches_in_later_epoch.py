"""Rank 1's sampler has nothing left for the third epoch; all gather their losses after each."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler


class FreshSamples(Sampler):
    def __init__(self, size):
        self.size = size
        self.epoch = 0

    def __iter__(self):
        used_up = self.epoch == 2 and dist.get_rank() == 1
        return iter(range(0 if used_up else self.size))


def train(model, optimizer, loader):
    total = 0.0
    for inputs in loader:
        loss = model(inputs).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    return total


def main():
    dist.init_process_group("gloo")
    sampler = FreshSamples(32)
    loader = DataLoader(torch.randn(32, 4), batch_size=4, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(4):
        sampler.epoch = epoch
        total = train(model, optimizer, loader)
        totals = [None] * dist.get_world_size()
        if epoch == 2 and total == 0.0:
            mark_onset()
        dist.all_gather_object(totals, total)
        if dist.get_rank() == 0:
            print("epoch", epoch, totals)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
