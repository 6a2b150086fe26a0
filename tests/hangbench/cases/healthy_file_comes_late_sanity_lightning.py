"""Composed by HangBench: lightning, 3 ranks by torchrun: healthy_file_comes_late at sanity in main, on [2]; the others wait: async."""

import os
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = 36
LATE_RANKS = {2}
progress = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def run_apart(program, *arguments):
    # started by a shell that ends at once, so that it is nobody's child, as a stranger's process is
    command = [sys.executable, "-c", program, *map(str, arguments)]
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$@" & echo', "sh", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return shell.stdout


WRITER = """
import pathlib, sys, time
time.sleep(float(sys.argv[2]))
pathlib.Path(sys.argv[1]).touch()
"""


def refresh_replay(affected):
    path = os.path.join(tempfile.mkdtemp(), "features.done")
    run_apart(WRITER, path, 146 if affected else 0)
    while not os.path.exists(path):
        time.sleep(0.5)


def query_quota():
    total = torch.ones(64)
    return dist.all_reduce(total, async_op=True).get_future().wait()


class Passages(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        progress.read += 1
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


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def setup(self, stage):
        progress.rank = self.global_rank

    def forward(self, inputs):
        return self.head(Scaled.apply(torch.tanh(self.embed(inputs))))

    def training_step(self, batch, index):
        progress.step = index
        time.sleep(0.2)
        inputs, targets = batch
        return nn.functional.mse_loss(self(inputs), targets)

    def validation_step(self, batch, index):
        refresh_replay(progress.rank == 2 and self.trainer.sanity_checking)
        query_quota()
        return self(batch[0]).mean()

    def configure_optimizers(self):
        return Descent(self.parameters(), lr=0.01)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["prompts"] = 1

    def teardown(self, stage):
        pass


class Watcher(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        pass

    def on_validation_epoch_end(self, trainer, module):
        pass


class PassagesModule(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Passages(8 * 3 * STEPS), batch_size=8, num_workers=0)

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(24 * 3, 16)), batch_size=8)


def load_pretrained_model():
    return Regressor()


def make_logger():
    return False


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=3,
        strategy="ddp",
        max_epochs=1,
        num_sanity_val_steps=1,
        logger=make_logger(),
        callbacks=[Watcher(), ModelCheckpoint(dirpath="prompts")],
        enable_progress_bar=True,
        enable_model_summary=False,
    )
    trainer.fit(load_pretrained_model(), datamodule=PassagesModule())
    print(f"rank {trainer.global_rank} done", flush=True)


if __name__ == "__main__":
    main()
