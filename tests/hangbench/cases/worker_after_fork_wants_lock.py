"""Workers are forked while a thread of rank 1 holds a lock, which nobody releases in the child."""

import threading

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.utils.data import DataLoader, Dataset

cache_lock = threading.Lock()
lock_is_held = threading.Event()
workers_are_up = threading.Event()


def refresh_cache():
    with cache_lock:
        lock_is_held.set()
        workers_are_up.wait()


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        with cache_lock:
            return torch.ones(4)


dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    threading.Thread(target=refresh_cache, daemon=True).start()
    lock_is_held.wait()
    mark_onset()
batches = iter(DataLoader(Samples(), batch_size=4, num_workers=2))
workers_are_up.set()
for batch in batches:
    dist.all_reduce(batch)
dist.destroy_process_group()
