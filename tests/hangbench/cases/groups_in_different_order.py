"""Rank 1 reduces over two groups in another order than rank 0, and than in all earlier steps."""

import torch
import torch.distributed as dist
from onset import mark_onset

READY_FIRST = {0: ["encoder", "decoder"], 1: ["decoder", "encoder"]}


def reduce_gradients(groups, order):
    for name in order:
        dist.all_reduce(torch.ones(4), group=groups[name])


dist.init_process_group("gloo")
groups = {name: dist.new_group([0, 1]) for name in ("encoder", "decoder")}
for _ in range(20):
    reduce_gradients(groups, ["encoder", "decoder"])
if dist.get_rank() == 1:
    mark_onset()
reduce_gradients(groups, READY_FIRST[dist.get_rank()])
dist.barrier()
dist.destroy_process_group()
