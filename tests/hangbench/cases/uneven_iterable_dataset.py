"""Rank 1's stream ends two batches earlier; it goes on to validation, where it waits for rank 0."""

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Shards(IterableDataset):
    def __iter__(self):
        samples = 64 if dist.get_rank() == 0 else 56
        for _ in range(samples):
            yield torch.randn(1, 4)
        if dist.get_rank() == 1:
            mark_onset()


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def validation_step(self, batch, index):
        self.log("validation_loss", self.layer(batch[0]).sum(), sync_dist=True)


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    validation = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)
    trainer.fit(Regressor(), DataLoader(Shards(), batch_size=4), validation)


if __name__ == "__main__":
    main()
