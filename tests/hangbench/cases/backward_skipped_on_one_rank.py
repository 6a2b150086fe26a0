"""With manual optimization, rank 1 leaves out the backward pass of a batch that it finds bad."""

import torch
from lightning.pytorch import LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).sum()
        if self.is_good(index):
            self.manual_backward(loss)
        else:
            mark_onset()
        self.optimizers().step()
        self.optimizers().zero_grad()

    def is_good(self, index):
        return not (self.global_rank == 1 and index == 4)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


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
    )
    trainer.fit(Regressor(), loader)


if __name__ == "__main__":
    main()
