"""Rank 1 waits for its child by descriptors: for a signal by an eventfd, then for its end."""

import os
import select
import subprocess
import sys

import torch
import torch.distributed as dist

WORK = "import os, sys, time; time.sleep(15); os.eventfd_write(int(sys.argv[1]), 1); time.sleep(15)"

dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    done = os.eventfd(0)
    child = subprocess.Popen([sys.executable, "-c", WORK, str(done)], pass_fds=[done])
    os.eventfd_read(done)
    dist.all_reduce(torch.ones(4))
    ended = select.poll()
    ended.register(os.pidfd_open(child.pid))
    ended.poll()
else:
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
