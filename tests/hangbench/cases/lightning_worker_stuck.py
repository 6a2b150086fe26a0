"""In a Lightning run, a DataLoader worker of rank 0 never decodes its picture."""

import threading

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader, Dataset


def decode(index):
    if dist.get_rank() == 0 and index > 30:
        mark_onset()
        threading.Event().wait()
    return torch.ones(4)


class Pictures(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return (decode(index),)


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
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regressor(), DataLoader(Pictures(), batch_size=4, num_workers=1))


if __name__ == "__main__":
    main()
