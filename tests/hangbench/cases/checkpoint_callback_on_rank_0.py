"""A checkpoint callback runs on rank 0 only, though Lightning's saving meets all ranks."""

import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class MainProcessCheckpoint(ModelCheckpoint):
    def on_train_epoch_end(self, trainer, module):
        if trainer.is_global_zero:
            mark_onset()
            super().on_train_epoch_end(trainer, module)


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
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        callbacks=[MainProcessCheckpoint(dirpath=tempfile.gettempdir(), save_last=True)],
    )
    trainer.fit(Regressor(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))


if __name__ == "__main__":
    main()
