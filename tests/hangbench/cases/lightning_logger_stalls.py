"""WandbLogger creates its run inside fit, on rank 0, against a server that never answers."""

import os
import socket
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def serve_nothing():
    silent_server = socket.create_server(("127.0.0.1", 0))
    port = silent_server.getsockname()[1]
    os.environ.update(WANDB_BASE_URL=f"http://127.0.0.1:{port}", WANDB_API_KEY="0" * 40)
    return silent_server


def main():
    silent_server = serve_nothing()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=WandbLogger(project="demo", save_dir=tempfile.mkdtemp()),
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    mark_onset()
    trainer.fit(Regressor(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))
    silent_server.close()


if __name__ == "__main__":
    main()
