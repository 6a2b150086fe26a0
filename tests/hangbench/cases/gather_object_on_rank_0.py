"""Rank 0 gathers objects that the others never send."""

import torch
import torch.distributed as dist
from onset import mark_onset


def collect_results():
    results = [None] * dist.get_world_size()
    dist.gather_object({"accuracy": 0.9}, results, dst=0)
    return results


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    mark_onset()
    collect_results()
dist.barrier()
dist.destroy_process_group()
