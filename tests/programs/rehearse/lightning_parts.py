"""A tiny Lightning job."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.layer(x), y)

    def training_step(self, batch, index):
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(number=256, **given):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(number, 8), torch.randint(0, 2, (number,)))
    return DataLoader(data, batch_size=8, **given)


def trainer(**given):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    plain = {"accelerator": "auto", "devices": 2, "strategy": "ddp", "max_epochs": 3}
    return pl.Trainer(**{**quiet, "enable_checkpointing": False, **plain, **given})
