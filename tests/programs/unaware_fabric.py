"""A script that never heard of this package: Lightning Fabric."""

import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=1)
fabric.launch()
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2)
for batch in fabric.setup_dataloaders(loader):
    fabric.backward(model(batch).sum())
    optimizer.step()
fabric.barrier()
fabric.save("state.ckpt", {"model": model})
fabric.load("state.ckpt", {"model": model})
print("2 steps")
