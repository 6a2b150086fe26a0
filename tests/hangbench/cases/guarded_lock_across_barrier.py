"""Rank 0 waits for all ranks inside a lock; rank 1 waits for that lock before it comes."""

import tempfile
from pathlib import Path

import torch.distributed as dist
from onset import mark_onset

import lightning_hangcheck as hc


def build_cache(path):
    if dist.get_rank() == 1:
        hc.barrier("rank 0 has the lock", timeout=60.0)
    with hc.locked(path, timeout=120.0):
        if dist.get_rank() == 0:
            hc.barrier("rank 0 has the lock", timeout=60.0)
            mark_onset()
        dist.barrier()


dist.init_process_group("gloo")
shared = [tempfile.mkdtemp()]
dist.broadcast_object_list(shared)
build_cache(Path(shared[0]) / "cache")
dist.destroy_process_group()
