"""Rank 0 waits for the end of a program whose long output a thread of it reads slowly."""

import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def index(output):
    while output.read(65536):
        time.sleep(6)


for step in range(40):
    dist.all_reduce(torch.ones(4))
    if step == 20 and rank == 0:
        listing = [sys.executable, "-c", "print('shard ' * 60000)"]
        program = subprocess.Popen(listing, stdout=subprocess.PIPE)
        threading.Thread(target=index, args=(program.stdout,), daemon=True).start()
        program.wait()
dist.destroy_process_group()
