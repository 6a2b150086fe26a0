"""A home-made autograd function of rank 1 waits in its backward pass."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel


class OffloadedActivations(torch.autograd.Function):
    steps = 0

    @staticmethod
    def forward(ctx, hidden):
        return hidden * 1

    @staticmethod
    def backward(ctx, gradient):
        OffloadedActivations.steps += 1
        if dist.get_rank() == 1 and OffloadedActivations.steps == 20:
            mark_onset()
            threading.Event().wait()
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, batch):
        return OffloadedActivations.apply(self.layer(batch))


dist.init_process_group("gloo")
model = DistributedDataParallel(Model())
for _ in range(40):
    model(torch.ones(2, 4)).sum().backward()
dist.destroy_process_group()
