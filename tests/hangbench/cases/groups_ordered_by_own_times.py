"""Two of four ranks reduce over their groups in another order, as their own times suggest."""

import torch
import torch.distributed as dist
from onset import mark_onset


def reduce_over(groups, order):
    for name in order:
        dist.all_reduce(torch.ones(4), group=groups[name])


dist.init_process_group("gloo")
rank = dist.get_rank()
rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
groups = {"row": rows[rank // 2], "column": columns[rank % 2]}
times = {"row": 1.0, "column": 2.0}
for step in range(100):
    if step == 40 and rank in (0, 3):
        mark_onset()
        times["column"] = 0.5
    reduce_over(groups, sorted(times, key=times.get))
dist.destroy_process_group()
