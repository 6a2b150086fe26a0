"""Composed by HangBench: fabric, 3 ranks by torchrun: healthy_retries at checkpoint in main, on [1]; the others wait: polled."""

import logging
import socket
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, Dataset

STEPS = 36
OLD_HOSTS = {1}
session = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def refresh_schedule(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def claim_cache(affected):
    until = time.monotonic() + (106 if affected else 0.01)
    while time.monotonic() < until:
        try:
            refresh_schedule(1)
        except OSError:
            time.sleep(min(7.0, max(0.0, until - time.monotonic())))


def look_up_mixture_ratios():
    total = torch.ones(64)
    work = dist.all_reduce(total, async_op=True)
    while not work.is_completed():
        time.sleep(0.02)
    return total


class Recordings(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        session.read += 1
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


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.embed(inputs))
        return self.head(Scaled.apply(hidden))


def check_environment():
    torch.manual_seed(7)


def load_tokenizer():
    return {"<pad>": 0, "<eos>": 1}


def setup_mlflow():
    return logging.getLogger("embeddings")


def load_pretrained_model():
    return Regressor()


def build_dataloader():
    return Recordings(512)


def run_validation(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def save_checkpoint(model):
    claim_cache(session.rank in OLD_HOSTS)
    look_up_mixture_ratios()
    torch.save(model.state_dict(), f"embeddings-{session.rank}.pt")


def generate_samples(model, tokenizer):
    return [len(tokenizer)] * 4


def cleanup():
    print(f"rank {session.rank} done", flush=True)


def train(model, optimizer, loader, logger):
    for session.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        session.fabric.backward(loss)
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.05)


def main():
    fabric = session.fabric = Fabric(accelerator="cpu", devices=3, strategy="ddp")
    fabric.launch()
    session.rank = fabric.global_rank
    check_environment()
    logger = setup_mlflow()
    tokenizer = load_tokenizer()
    model = load_pretrained_model()
    loader = DataLoader(build_dataloader(), batch_size=8, num_workers=0)
    optimizer = Descent(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    train(model, optimizer, loader, logger)
    run_validation(model)
    generate_samples(model, tokenizer)
    save_checkpoint(model)
    cleanup()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
