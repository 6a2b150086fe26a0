"""Tiny Lightning jobs: what parts the ranks in one scene, and one that no scene parts.

Argument: the class's name. Each says what it does; one that hangs, also how it is mended.
"""

import sys
import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
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


class SkipsNan(Module):
    """Makes no backward pass for a loss that is not finite, without asking the other ranks.

    Mended by reducing the flag over all ranks first.
    """

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        loss = self.loss(batch)
        if not torch.isfinite(loss):
            return
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


class StopsAlone(Module):
    """Ends training once the loss of its own batch is small enough.

    Mended by reducing the loss over all ranks first, or by EarlyStopping.
    """

    def training_step(self, batch, index):
        loss = self.loss(batch)
        if loss.item() < 1e-4:
            self.trainer.should_stop = True
        return loss


class Robust(Module):
    """With validation, early stopping and checkpoints as the manual has them."""

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch), sync_dist=True)


def loader(number=256, **given):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(number, 8), torch.randint(0, 2, (number,)))
    return DataLoader(data, batch_size=8, **given)


quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
given = {"accelerator": "auto", "devices": 2, "strategy": "ddp", "max_epochs": 3}
loaders = [loader()]
if sys.argv[1] == "Robust":
    folder = tempfile.mkdtemp()
    given |= {"max_epochs": 10, "enable_checkpointing": True}
    given["callbacks"] = [
        EarlyStopping("val_loss", patience=2),
        ModelCheckpoint(folder, monitor="val_loss", every_n_train_steps=500),
        ModelCheckpoint(folder, filename="last"),
    ]
    loaders = [loader(shuffle=True), loader(64)]
trainer = pl.Trainer(**{"enable_checkpointing": False, **quiet, **given})
trainer.fit(globals()[sys.argv[1]](), *loaders)
