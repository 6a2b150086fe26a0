"""Lightning saves through a storage plugin whose storage takes no more bytes."""

import os
import tempfile
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class NetworkStorage(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        slow_mount = Path(tempfile.mkdtemp()) / "mount"
        os.mkfifo(slow_mount)
        kept_open = os.open(slow_mount, os.O_RDWR)
        mark_onset()
        with slow_mount.open("wb") as file:
            torch.save(checkpoint, file)
        os.close(kept_open)


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 20_000)

    def training_step(self, batch, index):
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
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(dirpath=tempfile.mkdtemp())],
        plugins=[NetworkStorage()],
    )
    trainer.fit(Regressor(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))


if __name__ == "__main__":
    main()
