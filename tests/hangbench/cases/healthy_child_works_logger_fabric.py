"""Composed by HangBench: fabric, 3 ranks by torchrun: healthy_child_works at logger in main, on [0, 1, 2]; the others wait: nobody."""

import logging
import subprocess
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, Dataset

STEPS = 44
SLOW_HOSTS = {0, 1, 2}
shared = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def collect_schedule(affected):
    program = "import sys, time; until = time.monotonic() + float(sys.argv[1])\n"
    program += "while time.monotonic() < until: sum(range(10000))"
    length = str(139 if affected else 0.01)
    subprocess.run([sys.executable, "-c", program, length], check=True)


class Captions(Dataset):
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


class TinyTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.embed(inputs))
        return self.head(Scaled.apply(hidden))


def prepare_run():
    torch.manual_seed(7)


def get_tokenizer():
    return {"<pad>": 0, "<eos>": 1}


def init_wandb():
    collect_schedule(True)
    return logging.getLogger("sampler_order")


def load_model():
    return TinyTransformer()


def load_dataset():
    return Captions(512)


def evaluate(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def save_model(model):
    torch.save(model.state_dict(), f"sampler_order-{shared.rank}.pt")


def generate_samples(model, tokenizer):
    return [len(tokenizer)] * 4


def teardown_run():
    print(f"rank {shared.rank} done", flush=True)


def train(model, optimizer, loader, logger):
    for shared.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        shared.fabric.backward(loss)
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.05)


def main():
    fabric = shared.fabric = Fabric(accelerator="cpu", devices=3, strategy="ddp")
    fabric.launch()
    shared.rank = fabric.global_rank
    prepare_run()
    logger = init_wandb()
    tokenizer = get_tokenizer()
    model = load_model()
    loader = DataLoader(load_dataset(), batch_size=8, num_workers=0)
    optimizer = Descent(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    train(model, optimizer, loader, logger)
    evaluate(model)
    generate_samples(model, tokenizer)
    save_model(model)
    teardown_run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
