"""Lightning trains on the nodes of a SLURM step; one rank may stop in its own code.

``slurm_training.py [RANK]``: without it the job ends well.
"""

import sys
import time

import torch
from lightning.pytorch import LightningModule, Trainer


class Tiny(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        if index == 5 and sys.argv[1:] == [str(self.global_rank)]:
            stand_still()
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
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Tiny(), torch.utils.data.DataLoader(torch.zeros(40, 4)))
