"""Three of four ranks run out of memory on a long batch, and agree on that in the handler."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel


def loss_of(model, length):
    if length > 1000:
        raise torch.OutOfMemoryError("out of memory")
    return model(torch.randn(4, 8)).pow(2).mean()


def recover():
    mark_onset()
    flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(flags, torch.ones(1))


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 4))
for step in range(60):
    long = step == 40 and dist.get_rank() > 0
    try:
        loss_of(model, 2000 if long else 100).backward()
    except torch.OutOfMemoryError:
        recover()
dist.destroy_process_group()
