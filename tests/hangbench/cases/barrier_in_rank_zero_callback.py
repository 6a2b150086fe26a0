"""A callback marked rank_zero_only calls a barrier after validation."""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class ReportWriter(Callback):
    @rank_zero_only
    def on_validation_end(self, trainer, module):
        mark_onset()
        trainer.strategy.barrier("report written")


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def validation_step(self, batch, index):
        return self.layer(batch[0]).sum()


def main():
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[ReportWriter()],
    )
    trainer.fit(Regressor(), loader, loader)


if __name__ == "__main__":
    main()
