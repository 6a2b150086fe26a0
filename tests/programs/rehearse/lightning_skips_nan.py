"""Makes no backward pass for a loss that is not finite, without asking the other ranks.

Mended by reducing the flag over all ranks first.
"""

import torch
from lightning_parts import Module, loader, trainer


class Skipping(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        loss = self.loss(batch)
        if not torch.isfinite(loss):
            return
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


trainer().fit(Skipping(), loader())
