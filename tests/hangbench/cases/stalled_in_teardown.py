"""Rank 0 never comes out of its teardown hook; rank 1 waits for it to test the model together."""

import threading

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
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

    def teardown(self, stage):
        if self.global_rank == 0:
            mark_onset()
            threading.Event().wait()


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
    trainer.fit(Regressor(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
