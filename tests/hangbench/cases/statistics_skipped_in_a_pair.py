"""Groups of two; every thirtieth step gathers statistics, and once rank 3 has none and skips that."""

import torch
import torch.distributed as dist
from onset import mark_onset

EVERY = 30


def make_groups():
    every = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    rank = dist.get_rank()
    return every[rank // 2], every[2 + rank % 2]


def sync_gradients(group):
    dist.all_reduce(torch.ones(64), group=group)


def collect_statistics(used, group):
    if not used:
        return
    gathered = [None, None]
    dist.all_gather_object(gathered, used, group=group)


dist.init_process_group("gloo")
tensor_pair, data_pair = make_groups()
for step in range(1, 10_000):
    dist.all_reduce(torch.ones(8, 8), group=tensor_pair)
    sync_gradients(data_pair)
    if step % EVERY == 0:
        padding = dist.get_rank() == 3 and step > 4 * EVERY
        if padding:
            mark_onset()
        collect_statistics({} if padding else {"expert": step}, data_pair)
