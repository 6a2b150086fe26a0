"""Rank 0 alone calls trainer.save_checkpoint, which waits for all ranks."""

import torch
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

    def on_train_epoch_end(self):
        if self.global_rank == 0:
            mark_onset()
            self.trainer.save_checkpoint("last.ckpt")


def main():
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Regressor(), loader)


if __name__ == "__main__":
    main()
