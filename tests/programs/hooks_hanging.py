"""Two ranks with the callback; the training step of rank 1 waits for what never comes."""

import threading

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

import lightning_hangcheck as hc


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        if self.global_rank == 1 and index == 4:
            threading.Event().wait()
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


trainer = Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[hc.HangCheck()],
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=4))
