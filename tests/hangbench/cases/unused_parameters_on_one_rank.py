"""Rank 1 never uses one layer, so its gradients never come; DDP raises there in the next step."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = torch.nn.Linear(4, 4)
        self.expert = torch.nn.Linear(4, 4)

    def forward(self, batch, use_expert):
        hidden = self.shared(batch)
        return self.expert(hidden) if use_expert else hidden


dist.init_process_group("gloo")
model = DistributedDataParallel(Experts())
mark_onset()
for _ in range(3):
    model(torch.ones(2, 4), use_expert=dist.get_rank() == 0).sum().backward()
dist.destroy_process_group()
