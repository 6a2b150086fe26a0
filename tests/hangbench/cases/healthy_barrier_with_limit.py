"""Rank 0 looks for stragglers with a time limit; the others train on and do not come."""

import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
check = dist.new_group()
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if rank == 0:
    try:
        dist.monitored_barrier(check, timeout=datetime.timedelta(seconds=18))
    except RuntimeError as error:
        print(f"stragglers: {error}", flush=True)
dist.all_reduce(torch.ones(4))
print(f"rank {rank} done", flush=True)
dist.destroy_process_group()
