"""Rank 0 has started two reductions and waits for the second, to which rank 2 comes late."""

import time

import torch
import torch.distributed as dist


def fetch_index():
    time.sleep(15)


dist.init_process_group("gloo")
rank = dist.get_rank()
pair, ends, last = (dist.new_group(members) for members in ([0, 1], [0, 2], [0, 1]))
for step in range(30):
    gradients = torch.ones(16)
    if rank == 0:
        handle = dist.all_reduce(gradients, group=pair, async_op=True)
        second = dist.all_reduce(torch.ones(8), group=ends, async_op=True)
        second.wait()
        dist.broadcast(torch.ones(4), 0, group=last)
        handle.wait()
    elif rank == 1:
        dist.broadcast(torch.ones(4), 0, group=last)
        dist.all_reduce(gradients, group=pair)
    else:
        if step == 20:
            fetch_index()
        dist.all_reduce(torch.ones(8), group=ends)
dist.barrier()
dist.destroy_process_group()
print("trained", flush=True)
