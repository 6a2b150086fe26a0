"""A home-made experiment logger asks its tracker for a run number, and no answer comes."""

import socket

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class TrackerLogger(Logger):
    def __init__(self, address):
        super().__init__()
        self.address = address

    @property
    def name(self):
        return "tracker"

    @property
    def version(self):
        return 0

    @property
    @rank_zero_experiment
    def experiment(self):
        mark_onset()
        with socket.create_connection(self.address) as connection:
            connection.sendall(b"new run\n")
            return connection.recv(100)

    @rank_zero_only
    def log_metrics(self, metrics, step=None):
        print(self.experiment, metrics)

    @rank_zero_only
    def log_hyperparams(self, params):
        print(self.experiment, params)


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    tracker = socket.create_server(("127.0.0.1", 0))
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=TrackerLogger(tracker.getsockname()),
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regressor(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))


if __name__ == "__main__":
    main()
