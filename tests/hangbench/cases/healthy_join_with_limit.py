"""A thread waits for a lock that rank 1 keeps for the run; rank 0 waits for it for a while only."""

import fcntl
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist

CATALOGUE = Path("catalogue.lock")


def publish():
    with CATALOGUE.open("a") as catalogue:
        fcntl.flock(catalogue, fcntl.LOCK_EX)
        catalogue.write(f"{os.getpid()}\n")


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    catalogue = CATALOGUE.open("a")
    fcntl.flock(catalogue, fcntl.LOCK_EX)
dist.barrier()
if dist.get_rank() == 0:
    publishing = threading.Thread(target=publish, daemon=True)
    publishing.start()
    publishing.join(timeout=18)
    if publishing.is_alive():
        print("the catalogue is in use", flush=True)
dist.barrier()
print(f"rank {dist.get_rank()} done", flush=True)
dist.destroy_process_group()
