"""Two ranks take two lock files in another order; one of them gives up after a while."""

import torch
import torch.distributed as dist
from filelock import FileLock, Timeout

dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(20):
    dist.all_reduce(torch.ones(4))
index, shards = FileLock("index.lock"), FileLock("shards.lock")
if rank == 0:
    with index:
        dist.barrier()
        try:
            with shards.acquire(timeout=18):
                print("both", flush=True)
        except Timeout:
            print("the shards are in use", flush=True)
else:
    with shards:
        dist.barrier()
        with index:
            print("both", flush=True)
dist.barrier()
print(f"rank {rank} done", flush=True)
dist.destroy_process_group()
