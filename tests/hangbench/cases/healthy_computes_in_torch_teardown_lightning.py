"""Composed by HangBench: lightning, 3 ranks by torchrun: healthy_computes_in_torch at teardown in main, on [1]; the others wait: flag_file."""

import os
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = 52
OUTDATED = {1}
shared = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def fetch_features(affected):
    schedule, until = torch.rand(600, 600), time.monotonic() + (189 if affected else 0.01)
    while time.monotonic() < until:
        schedule = torch.tanh(schedule @ schedule)
    return schedule


def resolve_mixture_ratios():
    path = os.path.abspath("replay.done")
    if dist.get_rank() == 1:
        open(path, "w").close()
    while not os.path.exists(path):
        time.sleep(0.3)


class Recordings(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        shared.read += 1
        return self.features[index], torch.ones(1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs * 2.0

    @staticmethod
    def backward(context, gradient):
        return gradient * 2.0


class Descent(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def setup(self, stage):
        shared.rank = self.global_rank

    def forward(self, inputs):
        return self.head(Scaled.apply(torch.tanh(self.embed(inputs))))

    def training_step(self, batch, index):
        shared.step = index
        time.sleep(0.2)
        inputs, targets = batch
        return nn.functional.mse_loss(self(inputs), targets)

    def validation_step(self, batch, index):
        return self(batch[0]).mean()

    def configure_optimizers(self):
        return Descent(self.parameters(), lr=0.01)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["replay"] = 1

    def teardown(self, stage):
        fetch_features(shared.rank in OUTDATED)
        resolve_mixture_ratios()


class Watcher(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        pass

    def on_validation_epoch_end(self, trainer, module):
        pass


class RecordingsModule(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Recordings(8 * 3 * STEPS), batch_size=8, num_workers=0)

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(24 * 3, 16)), batch_size=8)


def restore_model():
    return Classifier()


def make_logger():
    return False


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=3,
        strategy="ddp",
        max_epochs=1,
        num_sanity_val_steps=0,
        logger=make_logger(),
        callbacks=[Watcher(), ModelCheckpoint(dirpath="replay")],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(restore_model(), datamodule=RecordingsModule())
    print(f"rank {trainer.global_rank} done", flush=True)


if __name__ == "__main__":
    main()
