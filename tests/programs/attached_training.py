"""Distributed training that never heard of hangcheck.

The first argument is a mode, the second a file that appears once the mode shows.
Modes: saving (rank 0 writes a checkpoint slowly, the other waits at the
barrier behind it), stuck (rank 1 leaves the loop for its own code).
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


def saves_slowly(model):
    for number in range(10_000):
        with Path(os.devnull).open("wb") as file:
            torch.save(model.state_dict(), file)
            file.write(os.urandom(1 << 17))
        time.sleep(0.1 if number else 0)


def waits_for_feed():
    Path(sys.argv[2]).touch()
    threading.Event().wait()


def trains(mode):
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1_000_000):
        model(torch.randn(32, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
        if step == 20 and dist.get_rank() == 0 and mode != "stuck":
            Path(sys.argv[2]).touch()
        if step == 20 and mode == "saving":
            if dist.get_rank() == 0:
                saves_slowly(model)
            dist.barrier()
        if step == 20 and mode == "stuck" and dist.get_rank() == 1:
            waits_for_feed()


torch.set_num_threads(1)
trains(sys.argv[1])
