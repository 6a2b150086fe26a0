"""Barriers before and after the process group, one of them with a rank missing.

Started by torchrun. Argument: a folder.
"""

import os
import signal
import sys

import gloo
import torch
import torch.distributed as dist
from saying import say

import lightning_hangcheck as hc
from lightning_hangcheck.errors import MeetingFailed


def prepare_data():
    """Rank 1 stands here until it is told."""
    signal.sigwait({signal.SIGUSR1})


def attempt(name, timeout):
    try:
        hc.barrier(name, timeout)
    except MeetingFailed as error:
        say(name, rank=rank, failed=str(error))
    else:
        say(name, rank=rank, failed=None)


rank = int(os.environ["RANK"])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
attempt("before", 240.0)
gloo.join(init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
pids = [None, None]
dist.all_gather_object(pids, os.getpid())
if rank == 1:
    prepare_data()
attempt("after data", 2.0)
if rank == 0:
    os.kill(pids[1], signal.SIGUSR1)
total = torch.ones(1)
dist.all_reduce(total)
attempt("end", 240.0)
say("sum", rank=rank, total=total.item())
gloo.leave()
