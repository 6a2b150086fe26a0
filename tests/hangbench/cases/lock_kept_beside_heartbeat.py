"""Rank 1 takes a lock that it has taken before, beside a thread that reports all the time."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset

stop, cache_lock = threading.Event(), threading.Lock()


def report():
    while not stop.wait(2):
        print("alive", flush=True)


def take():
    cache_lock.acquire()


dist.init_process_group("gloo")
threading.Thread(target=report, daemon=True).start()
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    take()
    mark_onset()
    take()
dist.barrier()
dist.destroy_process_group()
