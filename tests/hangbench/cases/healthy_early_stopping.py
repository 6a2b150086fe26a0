"""Early stopping ends a Lightning run on all ranks at once, on a metric that all share."""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader, TensorDataset


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def validation_step(self, batch, index):
        self.log("validation_loss", torch.tensor(1.0), sync_dist=True)


def main():
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=20,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[EarlyStopping("validation_loss", patience=2)],
    )
    trainer.fit(Regressor(), loader, loader)


if __name__ == "__main__":
    main()
