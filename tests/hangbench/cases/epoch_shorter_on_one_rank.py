"""Lightning: in the third epoch rank 1's new loader is shorter; a hook meets after each epoch."""

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader


class FreshData(LightningDataModule):
    def train_dataloader(self):
        left = 64
        if self.trainer.current_epoch == 2 and self.trainer.global_rank == 1:
            mark_onset()
            left = 16
        return DataLoader(torch.randn(left, 4), batch_size=4)


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def on_train_epoch_end(self):
        self.trainer.strategy.barrier("epoch")


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
    )
    trainer.fit(Regressor(), FreshData())


if __name__ == "__main__":
    main()
