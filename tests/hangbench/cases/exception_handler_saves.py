"""Rank 1 raises, and a callback then saves a checkpoint, for which all ranks must come."""

import tempfile
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class EmergencyCheckpoint(Callback):
    def on_exception(self, trainer, module, exception):
        mark_onset()
        trainer.save_checkpoint(Path(tempfile.gettempdir()) / "emergency.ckpt")


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        if self.global_rank == 1 and index == 3:
            raise ValueError("bad sample 17")
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[EmergencyCheckpoint()],
    )
    trainer.fit(Regressor(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))


if __name__ == "__main__":
    main()
