"""accelerate trains on the CPUs of two nodes; a rank stops in its own code.

``training_with_accelerate.py RANK``
"""

import sys
import time

import torch
from accelerate import Accelerator


def stand_still():
    time.sleep(100_000)


def train(accelerator):
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
    for step in range(100):
        if step == 20 and accelerator.process_index == int(sys.argv[1]):
            stand_still()
        accelerator.backward(model(torch.zeros(2, 4)).sum())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)


train(Accelerator(cpu=True))  # else it would train on each rank alone, where there is no GPU
