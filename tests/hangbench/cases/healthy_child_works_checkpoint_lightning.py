"""Composed by HangBench: lightning, 4 ranks by torchrun: healthy_child_works at checkpoint in pool, on [3]; the others wait: p2p."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = 44
LATE_RANKS = {3}
shared = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def fetch_embeddings(affected):
    program = "import sys, time; until = time.monotonic() + float(sys.argv[1])\n"
    program += "while time.monotonic() < until: sum(range(10000))"
    length = str(229 if affected else 0.01)
    subprocess.run([sys.executable, "-c", program, length], check=True)


def resolve_embeddings(affected):
    with ThreadPoolExecutor(max_workers=3) as executor:
        tasks = [executor.submit(fetch_embeddings, affected and number == 1) for number in range(3)]
        return [task.result() for task in tasks]


def claim_shard():
    token = torch.zeros(4)
    if dist.get_rank() == 3:
        for peer in range(dist.get_world_size()):
            if peer != 3:
                dist.send(token, dst=peer)
    else:
        dist.recv(token, src=3)


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


class PolicyNetwork(LightningModule):
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
        resolve_embeddings(shared.rank in LATE_RANKS)
        claim_shard()
        checkpoint["sampler_order"] = 1

    def teardown(self, stage):
        pass


class Watcher(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        pass

    def on_validation_epoch_end(self, trainer, module):
        pass


class RecordingsModule(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Recordings(8 * 4 * STEPS), batch_size=8, num_workers=0)

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(24 * 4, 16)), batch_size=8)


def load_weights():
    return PolicyNetwork()


def create_logger():
    return False


def main():
    trainer = Trainer(
        accelerator="cpu",
        devices=4,
        strategy="ddp",
        max_epochs=1,
        num_sanity_val_steps=0,
        logger=create_logger(),
        callbacks=[Watcher(), ModelCheckpoint(dirpath="sampler_order")],
        enable_progress_bar=True,
        enable_model_summary=False,
    )
    trainer.fit(load_weights(), datamodule=RecordingsModule())
    print(f"rank {trainer.global_rank} done", flush=True)


if __name__ == "__main__":
    main()
