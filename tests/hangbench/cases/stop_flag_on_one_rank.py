"""Only rank 1 hears the scheduler's warning, leaves the loop and waits where nobody else comes."""

import os
import signal

import torch
import torch.distributed as dist
from onset import mark_onset

asked_to_stop = False


def remember_to_stop(*_):
    global asked_to_stop
    asked_to_stop = True


def finish():
    mark_onset()
    dist.barrier()


signal.signal(signal.SIGUSR2, remember_to_stop)
dist.init_process_group("gloo")
for step in range(1_000_000):
    if dist.get_rank() == 1 and step == 50:
        os.kill(os.getpid(), signal.SIGUSR2)
    if asked_to_stop:
        break
    dist.all_reduce(torch.ones(4))
finish()
dist.destroy_process_group()
