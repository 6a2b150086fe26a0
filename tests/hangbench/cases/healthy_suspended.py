"""The whole job is suspended for 5 s and goes on, as when a laptop sleeps or a queue preempts."""

import os
import signal
import subprocess

import torch
import torch.distributed as dist


def suspend_for_5_seconds():
    subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


dist.init_process_group("gloo")
for step in range(600):
    if step == 200:
        suspend_for_5_seconds()
    torch.ones(256, 256) @ torch.ones(256, 256)
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
