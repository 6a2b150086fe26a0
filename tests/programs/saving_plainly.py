"""A plain loop that never heard of this package: it saves its weights, and no optimizer.

SAVES in its environment is weights, apart or sharded.
"""

import os

import torch
import torch.distributed.checkpoint as sharded

layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for epoch in range(2):
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    if os.environ["SAVES"] == "sharded":
        sharded.save({"model": layer.state_dict()}, checkpoint_id=f"epoch-{epoch}", no_dist=True)
        continue
    torch.save(layer.state_dict(), "layer.pt")
    torch.save(layer.state_dict(), "again.pt")
    if os.environ["SAVES"] == "apart":
        torch.save(optimizer.state_dict(), "optimizer.pt")
        torch.save({"scheduler": scheduler.state_dict(), "epoch": epoch}, "rest.pt")
