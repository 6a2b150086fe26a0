"""One process, no process group, and steps of a second."""

import time

import torch


def step(model):
    end = time.monotonic() + 1
    while time.monotonic() < end:
        model(torch.ones(64, 64)).sum().backward()


model = torch.nn.Linear(64, 64)
for _ in range(12):
    step(model)
