"""Rank 0 calls rank 1 by torch's RPC; what runs there takes a lock that its caller has."""

import os
import threading

import torch
from onset import mark_onset
from torch.distributed import rpc

lock = threading.Lock()
weights = torch.zeros(4)


def add(change):
    with lock:
        weights.add_(change)
        return norm()


def norm():
    with lock:
        return weights.norm()


rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
if rank == 0:
    for _ in range(5):
        rpc.rpc_sync("worker1", norm)
    mark_onset()
    rpc.rpc_sync("worker1", add, args=(torch.ones(4),), timeout=0)
rpc.shutdown()
