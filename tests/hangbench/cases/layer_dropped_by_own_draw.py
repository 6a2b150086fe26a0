"""Each rank draws by itself which layers of a sharded model it drops; all layers have one size."""

import random

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.distributed.fsdp import FullyShardedDataParallel


def sharded(module):
    return FullyShardedDataParallel(module, device_id=torch.device("cpu"))


class Encoder(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = torch.nn.ModuleList(sharded(torch.nn.Linear(16, 16)) for _ in range(depth))
        self.warm = False

    def forward(self, hidden):
        for layer in self.layers:
            if self.warm and random.random() < 0.2:
                mark_onset()
                continue
            hidden = layer(hidden)
        return hidden


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        model.warm = step >= 10
        loss = model(torch.randn(4, 16)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    random.seed(5 * dist.get_rank())
    train(Encoder(4), 40)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
