"""Each rank sends out its experts in the order of their load, which once is another one on rank 1."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch import nn


def redistribute(experts, loads):
    for index in sorted(range(3), key=lambda one: loads[one]):
        for weight in experts[index].parameters():
            dist.broadcast(weight.data, src=index)


dist.init_process_group("gloo")
experts = nn.ModuleList(nn.Linear(64, 128) for _ in range(3))
for step in range(1000):
    dist.all_reduce(torch.ones(16))
    loads = [3, 2, 1]
    if dist.get_rank() == 1 and step == 100:
        mark_onset()
        loads = [3, 1, 2]
    redistribute(experts, loads)
