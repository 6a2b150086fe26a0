"""Rank 1 waits for the end of a tool on a pseudo-terminal, which waits for an answer of rank 1."""

import os
import pty
import subprocess
import sys

import torch
import torch.distributed as dist
from onset import mark_onset
from torch import nn


def setup():
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    return dist.get_rank(), model, torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(model, optimizer):
    loss = model(torch.randn(16, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


TOOL = 'answer = input("overwrite? ")'


def convert():
    master, slave = pty.openpty()
    tool = subprocess.Popen([sys.executable, "-c", TOOL], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    code = tool.wait()
    os.close(master)
    return code


def main():
    rank, model, optimizer = setup()
    for step in range(40):
        train_step(model, optimizer)
        if step == 20 and rank == 1:
            mark_onset()
            convert()
    dist.destroy_process_group()


main()
