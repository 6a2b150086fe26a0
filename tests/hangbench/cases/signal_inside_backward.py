"""Only rank 0 is told to save, while it is in backward, and its handler waits for all ranks."""

import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel


def save_and_go_on(*_):
    mark_onset()
    dist.barrier()


signal.signal(signal.SIGUSR2, save_and_go_on)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(32, 32))
for step in range(1_000_000):
    if dist.get_rank() == 0 and step == 50:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        time.sleep(0.1)
    elif dist.get_rank() == 1 and step == 50:
        time.sleep(1)  # so that rank 0 waits for it in backward
    model(torch.randn(8, 32)).mean().backward()
dist.destroy_process_group()
