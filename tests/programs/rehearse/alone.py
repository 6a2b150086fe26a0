"""Trains in one process: there are no ranks that could part."""

import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(8, 8)).sum().backward()
    optimizer.step()
