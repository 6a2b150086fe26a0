"""Barriers before and after the process group, one of them with a rank missing.

Started by torchrun, or plainly: then it starts two ranks as torch.multiprocessing does, and tells
them only by arguments who they are. Argument: a folder.
"""

import os
import signal
import sys
from pathlib import Path

import gloo
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from saying import say

import lightning_hangcheck as hc
from lightning_hangcheck.errors import MeetingFailed


def prepare_data():
    """Rank 1 stands here until it is told."""
    signal.sigwait({signal.SIGUSR1})


def attempt(rank, name, timeout):
    try:
        hc.barrier(name, timeout)
    except MeetingFailed as error:
        say(name, rank=rank, failed=str(error))
    else:
        say(name, rank=rank, failed=None)


def work(rank, folder):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    if "RANK" in os.environ:
        attempt(rank, "before", 240.0)
    store = f"file://{folder}/store"
    gloo.join(init_method=store, rank=rank, world_size=2)
    pids = [None, None]
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        prepare_data()
    attempt(rank, "after data", 2.0)
    if rank == 0:
        os.kill(pids[1], signal.SIGUSR1)
    total = torch.ones(1)
    dist.all_reduce(total)
    attempt(rank, "end", 240.0)
    say("sum", rank=rank, total=total.item())
    gloo.leave()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), folder)
    else:
        mp.spawn(work, args=(folder,), nprocs=2)
