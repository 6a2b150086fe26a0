"""Rank 0 calls rank 1 by torch's RPC, several at once; one call waits for a texture."""

import os
import threading

import torch
from onset import mark_onset
from torch.distributed import rpc

loaded = threading.Event()


def render(scene):
    if scene == 7:
        wait_for_texture()
    return scene * 2


def wait_for_texture():
    mark_onset()
    loaded.wait()


def main():
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    if rank == 0:
        for first in range(0, 20, 4):
            calls = [rpc.rpc_async("worker1", render, args=(first + at,)) for at in range(4)]
            print(torch.futures.wait_all(calls))
    rpc.shutdown()


if __name__ == "__main__":
    main()
