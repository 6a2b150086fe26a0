"""Lightning saves through a plugin that writes for 12 s; the other rank waits at its barrier."""

import os
import tempfile
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import DataLoader, TensorDataset


class SlowStorage(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        super().save_checkpoint(checkpoint, path, storage_options)
        end = time.monotonic() + 12
        with (Path(path).parent / "optimizer.bin").open("wb") as file:
            while time.monotonic() < end:
                file.seek(0)
                file.write(os.urandom(1 << 18))
                os.fsync(file.fileno())
                time.sleep(0.1)


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(dirpath=tempfile.mkdtemp())],
        plugins=[SlowStorage()],
    )
    trainer.fit(Regressor(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))


if __name__ == "__main__":
    main()
