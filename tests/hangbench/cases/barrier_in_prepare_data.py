"""prepare_data runs on local rank 0 only, and has a barrier in it."""

import torch
import torch.distributed as dist
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class Samples(LightningDataModule):
    def prepare_data(self):
        mark_onset()
        dist.barrier()

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)


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
    trainer.fit(Regressor(), datamodule=Samples())


if __name__ == "__main__":
    main()
