"""An optimizer that keeps its state elsewhere waits for it on rank 0."""

import threading

import torch
from lightning.pytorch import LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class OffloadedSGD(torch.optim.SGD):
    def __init__(self, parameters, rate, rank):
        super().__init__(parameters, rate)
        self.rank = rank
        self.steps = 0

    def step(self, closure=None):
        loss = super().step(closure)
        self.steps += 1
        if self.rank == 0 and self.steps == 5:
            mark_onset()
            threading.Event().wait()
        return loss


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return OffloadedSGD(self.parameters(), 0.01, self.global_rank)


def main():
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regressor(), loader)


if __name__ == "__main__":
    main()
