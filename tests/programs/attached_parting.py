"""Two ranks that record, and part: rank 0 reduces while rank 1 comes to a barrier.

Its argument is a folder; each rank leaves a file there, named by its process id, when it comes to
where it will stay.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import lightning_hangcheck as hc


def parts(rank):
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
    hc.checkpoint("Model created", number=5)
    Path(sys.argv[1], f"{os.getpid()}.came").touch()
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.barrier()


torch.set_num_threads(1)
dist.init_process_group("gloo")
parts(int(os.environ["RANK"]))
