"""Each rank's GPU works for 45 s on what is queued, while the rank waits in one call."""

import time

import queued
import torch
import torch.distributed as dist


def long_kernel(_gloo):
    """45 s of work on the device: nothing of it runs on the rank's own thread."""
    time.sleep(45)
    return queued.Queued(None)


dist.init_process_group("queued")
group = queued.GROUPS[0]
for _ in range(20):
    dist.all_reduce(torch.ones(64))
group._enqueue("all_reduce", [torch.ones(1)], long_kernel, None)
for _ in range(20):
    dist.all_reduce(torch.ones(64))
queued.loss().item()
dist.destroy_process_group()
print("trained", flush=True)
