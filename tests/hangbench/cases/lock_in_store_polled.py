"""Rank 1 asks for a lock in the store again and again; rank 0 has it, and waits for rank 1."""

import time

import torch
import torch.distributed as dist
from onset import mark_onset

dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.PrefixStore("log", dist.distributed_c10d._get_default_store())
if rank == 0:
    store.set("owner", "rank0")
for _ in range(20):
    dist.all_reduce(torch.ones(4))


def take_log():
    mine = f"rank{rank}"
    while store.compare_set("owner", "free", mine).decode() != mine:
        time.sleep(0.02)


mark_onset()
take_log()
dist.all_reduce(torch.ones(4))
store.set("owner", "free")
dist.barrier()
