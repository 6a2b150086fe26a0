"""The training step of rank 1 waits for a reward model that has gone away."""

import threading

import torch
from lightning.pytorch import LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.reward_is_there = threading.Event()

    def training_step(self, batch, index):
        if self.global_rank == 1 and index == 4:
            mark_onset()
            self.reward_is_there.wait()
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


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
