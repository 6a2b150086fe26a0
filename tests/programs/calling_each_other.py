"""Ranks that only call each other: both threads of rank 0 wait for calls queued behind them.

``calling_each_other.py PORT``: torch.multiprocessing starts them, and no process group is made.
"""

import os
import sys

import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing

RANKS = 2


def add(number):
    return number + 1


def call_back(number):
    return rpc.rpc_sync("rank0", add, args=(number,))


def call(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=2, rpc_timeout=600)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=RANKS, rpc_backend_options=options)
    if rank:
        answers = [rpc.rpc_async("rank0", call_back, args=(number,)) for number in range(8)]
        for answer in answers:
            answer.wait()
    rpc.shutdown()


if __name__ == "__main__":
    multiprocessing.spawn(call, args=(sys.argv[1],), nprocs=RANKS)
