"""Each validation batch is gathered from all ranks, and rank 1 has fewer of them."""

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

    def validation_step(self, batch, index):
        self.all_gather(self.layer(batch[0]).sum())

    def on_validation_epoch_end(self):
        if dist.get_rank() == 1:
            mark_onset()

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)

    def val_dataloader(self):
        samples = 64 if dist.get_rank() == 0 else 48
        return DataLoader(TensorDataset(torch.randn(samples, 4)), batch_size=4)


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regressor())


if __name__ == "__main__":
    main()
