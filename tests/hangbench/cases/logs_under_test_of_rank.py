"""Both ranks train, rank 0 with a log open; rank 1 has fewer batches, and gathers at the end."""

import sys

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def train(log):
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for inputs in DataLoader(torch.randn(120 - 20 * rank, 4), batch_size=4):
        loss = model(inputs).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if log is not None:
            log.write(f"{loss.item()}\n")
    if rank == 1:
        mark_onset()
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, loss.item())


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print("logging")
        train(sys.stdout)
    else:
        train(None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
