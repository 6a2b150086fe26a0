"""Rank 1 is stopped before it joins; rank 0 waits for it in the rendezvous."""

import os
import signal

import torch.distributed as dist
from onset import mark_onset


def prepare():
    mark_onset()
    os.kill(os.getpid(), signal.SIGSTOP)


if os.environ["RANK"] == "1":
    prepare()
dist.init_process_group("gloo")
dist.destroy_process_group()
