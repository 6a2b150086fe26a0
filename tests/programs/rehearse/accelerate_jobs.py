"""accelerate: gathers losses at every batch with even_batches=False, so one rank may have one more.

Mended by even_batches=True or join_uneven_inputs.
"""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from parts import loss_of, samples
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False))
model = nn.Linear(8, 2)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(samples(), batch_size=8)
)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        accelerator.gather(loss.detach())
accelerator.end_training()
