"""A plain loop that never heard of this package, and saves its weights.

SAVES in its environment is weights, or apart: then it saves the rest in other files.
"""

import os

import torch

layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for epoch in range(2):
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    torch.save(layer.state_dict(), "layer.pt")
    torch.save(layer.state_dict(), "again.pt")
    if os.environ["SAVES"] == "apart":
        torch.save(optimizer.state_dict(), "optimizer.pt")
        torch.save({"scheduler": scheduler.state_dict(), "epoch": epoch}, "rest.pt")
