"""Rank 1 is suspended for 4 s and goes on; rank 0 waits meanwhile."""

import os
import signal
import subprocess

import torch
import torch.distributed as dist


def suspend_for_4_seconds():
    subprocess.Popen(["sh", "-c", f"sleep 4; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


dist.init_process_group("gloo")
for step in range(600):
    if dist.get_rank() == 1 and step == 200:
        suspend_for_4_seconds()
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
