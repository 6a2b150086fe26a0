"""Lightning trains on two nodes, with the callback that a user adds, and nothing else of ours.

``training_with_callback.py RANK``: that rank stops in its own code.
"""

import sys
import time

import torch
from lightning.pytorch import LightningModule, Trainer

import lightning_hangcheck as hc


class Tiny(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        if index == 20 and self.global_rank == int(sys.argv[1]):
            stand_still()
        time.sleep(0.05)
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def stand_still():
    time.sleep(100_000)


Trainer(
    accelerator="cpu",
    devices=1,
    num_nodes=2,
    strategy="ddp",
    max_epochs=1,
    callbacks=[hc.HangCheck()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Tiny(), torch.utils.data.DataLoader(torch.zeros(400, 4)))
