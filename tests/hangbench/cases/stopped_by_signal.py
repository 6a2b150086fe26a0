"""Rank 1 is stopped, as by a debugger or the freezer; rank 0 waits in a barrier."""

import os
import signal

import torch.distributed as dist
from onset import mark_onset


def prepare():
    mark_onset()
    os.kill(os.getpid(), signal.SIGSTOP)


dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    prepare()
dist.barrier()
