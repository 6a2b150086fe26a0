"""A thread of rank 0 refreshes a cache under its lock, while rank 1 wants it and rank 0 waits for rank 1."""

import fcntl
import os
import tempfile
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
path = os.path.join(tempfile.gettempdir(), f"cache-{os.environ['MASTER_PORT']}.lock")
locked = threading.Event()


def refresh():
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        locked.set()
        time.sleep(20)


if rank == 0:
    threading.Thread(target=refresh).start()
    locked.wait()
dist.barrier()
if rank == 1:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
dist.barrier()
for _ in range(20):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
