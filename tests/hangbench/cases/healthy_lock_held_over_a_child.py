"""Rank 1 waits for a lock that a thread holds while its child copies, beside others in turns."""

import subprocess
import threading
import time

import torch
import torch.distributed as dist

finished = threading.Event()
shard_lock = threading.Lock()
turn = threading.Lock()
copying = threading.Event()


def copy_shard():
    with shard_lock:
        copying.set()
        subprocess.run(["sleep", "45"], check=True)


def rotate_logs():
    while not finished.is_set():
        with turn:
            time.sleep(0.2)


def read_shard():
    with shard_lock:
        return torch.ones(4)


dist.init_process_group("gloo")
for _ in range(2):
    threading.Thread(target=rotate_logs, daemon=True).start()
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    threading.Thread(target=copy_shard).start()
    copying.wait()
    read_shard()
dist.barrier()
finished.set()
print(f"rank {dist.get_rank()} done", flush=True)
dist.destroy_process_group()
