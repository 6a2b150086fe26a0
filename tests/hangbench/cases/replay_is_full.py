"""Actors call the learner by RPC: its buffer is full, and nothing takes from it any more."""

import os
import queue

import torch
import torch.distributed.rpc as rpc
from onset import mark_onset

EPISODES = queue.Queue(60)


def put(episode):
    if EPISODES.full():
        mark_onset()
    EPISODES.put(episode)
    return EPISODES.qsize()


def act(steps):
    held = 0
    while held >= 0:
        observed = torch.randn(steps, 4).mul_(0.5).cumsum(0)
        held = rpc.rpc_sync("learner", put, args=(observed,))


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=6, rpc_timeout=3600)
    name = f"actor{rank}" if rank else "learner"
    rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)
    if rank:
        act(50)
    rpc.shutdown()


if __name__ == "__main__":
    main()
