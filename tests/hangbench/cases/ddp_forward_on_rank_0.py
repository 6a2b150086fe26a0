"""Rank 0 evaluates with the wrapped model, whose forward broadcasts the buffers of BatchNorm."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel


def train_step(model):
    model(torch.ones(2, 4)).sum().backward()


def evaluate(model):
    mark_onset()
    model.train()
    with torch.no_grad():
        model(torch.ones(2, 4))


dist.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
model = DistributedDataParallel(layers)
for _ in range(20):
    train_step(model)
if dist.get_rank() == 0:
    evaluate(model)
dist.barrier()
dist.destroy_process_group()
