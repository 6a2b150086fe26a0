"""Composed by HangBench: ddp, 4 ranks by torchrun: healthy_retries at forward in main, on [0, 1, 2, 3]; the others wait: nobody."""

import logging
import socket
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 44
OLD_HOSTS = {0, 1, 2, 3}
progress = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def resolve_lease(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def fetch_rewards(affected):
    until = time.monotonic() + (41 if affected else 0.01)
    while time.monotonic() < until:
        try:
            resolve_lease(1)
        except OSError:
            time.sleep(min(7.0, max(0.0, until - time.monotonic())))


class Dialogues(Dataset):
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


class TinyTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.embed(inputs))
        fetch_rewards(progress.step == 14)
        return self.head(Scaled.apply(hidden))


def warm_caches():
    torch.manual_seed(7)


def prepare_tokenizer():
    return {"<pad>": 0, "<eos>": 1}


def create_logger():
    return logging.getLogger("replay")


def restore_model():
    return TinyTransformer()


def prepare_dataset():
    return Dialogues(512)


def evaluate(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def write_checkpoint(model):
    torch.save(model.state_dict(), f"replay-{progress.rank}.pt")


def generate_samples(model, tokenizer):
    return [len(tokenizer)] * 4


def shutdown_run():
    print(f"rank {progress.rank} done", flush=True)


def train_loop(model, optimizer, loader, logger):
    for progress.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.2)


def main():
    dist.init_process_group("gloo")
    progress.rank = dist.get_rank()
    warm_caches()
    logger = create_logger()
    tokenizer = prepare_tokenizer()
    model = restore_model()
    loader = DataLoader(prepare_dataset(), batch_size=8, num_workers=0)
    model = DistributedDataParallel(model)
    optimizer = Descent(model.parameters(), lr=0.01)
    train_loop(model, optimizer, loader, logger)
    evaluate(model)
    generate_samples(model, tokenizer)
    write_checkpoint(model)
    shutdown_run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
