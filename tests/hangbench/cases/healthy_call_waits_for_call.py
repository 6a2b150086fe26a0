"""What rank 1 called by RPC waits for what rank 2 will call, which first works for a while."""

import os
import threading
import time

import torch
import torch.distributed.rpc as rpc

MET = threading.Barrier(2)


def meet(share):
    MET.wait()
    return share + 1


def work(seconds):
    until = time.monotonic() + seconds
    value = torch.eye(64)
    while time.monotonic() < until:
        value = torch.tanh(value @ value)
        time.sleep(0.001)
    return value.sum()


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=size)
    if rank:
        share = work(14) if rank == 2 else torch.ones(())
        rpc.rpc_sync("rank0", meet, args=(share,))
    rpc.shutdown()


if __name__ == "__main__":
    main()
