"""Rank 1 drives a simulator over a pseudo-terminal; a feeder gives it the next scene when it comes."""

import os
import pty
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

SIMULATOR = """
import sys
for line in sys.stdin:
    if line.strip() == "scene":
        break
print("done")
"""


def feed(master):
    time.sleep(15)  # the scene is rendered elsewhere
    os.write(master, b"scene\n")


def simulate():
    master, slave = pty.openpty()
    simulator = subprocess.Popen(
        [sys.executable, "-c", SIMULATOR], stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    threading.Thread(target=feed, args=(master,), daemon=True).start()
    code = simulator.wait()
    os.close(master)
    return code


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        if step == 20 and rank == 1:
            simulate()
        loss = model(torch.randn(16, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


main()
