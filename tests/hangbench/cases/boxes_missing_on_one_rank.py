"""A metric gathers its list element by element; rank 2 met images without boxes, and has fewer."""

import torch
from lightning.pytorch import LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader, Dataset
from torchmetrics import Metric

EMPTY = (8, 11)


class Images(Dataset):
    def __init__(self, number, empty=()):
        self.number, self.empty = number, empty

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        box = torch.zeros(4) if index in self.empty else torch.rand(4) + 0.1
        return torch.randn(8), box


class BoxError(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("errors", default=[], dist_reduce_fx=None)

    def update(self, found, boxes):
        for one, box in zip(found, boxes, strict=True):
            if box.any():
                self.errors.append((one - box).abs().mean())

    def compute(self):
        return torch.stack([one.mean() for one in self.errors]).mean()


class Detector(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.error = BoxError()

    def training_step(self, batch, index):
        images, boxes = batch
        return (self.layer(images) - boxes).square().mean()

    def validation_step(self, batch, index):
        images, boxes = batch
        self.error.update(self.layer(images), boxes)

    def on_validation_epoch_end(self):
        mark_onset()
        print("box error", self.error.compute())
        self.error.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=3,
        strategy="ddp",
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    validation = DataLoader(Images(12, EMPTY), batch_size=2)
    trainer.fit(Detector(), DataLoader(Images(48), batch_size=4), validation)


if __name__ == "__main__":
    main()
