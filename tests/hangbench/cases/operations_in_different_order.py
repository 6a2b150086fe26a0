"""Each rank reduces its statistics in the order in which its own dictionary has them."""

import torch
import torch.distributed as dist
from onset import mark_onset


def mean(tensor):
    dist.all_reduce(tensor)


def from_rank_0(tensor):
    dist.broadcast(tensor, 0)


def synchronise(tensors, by_name):
    for name in tensors:
        by_name[name](tensors[name])


dist.init_process_group("gloo")
names = ["loss", "scale"] if dist.get_rank() == 0 else ["scale", "loss"]
mark_onset()
synchronise({name: torch.ones(4) for name in names}, {"loss": mean, "scale": from_rank_0})
dist.barrier()
dist.destroy_process_group()
