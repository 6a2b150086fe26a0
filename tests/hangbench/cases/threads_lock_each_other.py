"""Two threads of rank 1 hold a lock each and want the other's."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset

cache_lock, file_lock = threading.Lock(), threading.Lock()
both_hold_one = threading.Barrier(2)


def write_file():
    with file_lock:
        both_hold_one.wait()
        with cache_lock:
            pass


def update_cache():
    with cache_lock:
        both_hold_one.wait()
        mark_onset()
        with file_lock:
            pass


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    threading.Thread(target=write_file).start()
    update_cache()
dist.barrier()
dist.destroy_process_group()
