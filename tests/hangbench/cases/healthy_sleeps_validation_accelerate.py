"""Composed by HangBench: accelerate, 3 ranks by torchrun: healthy_sleeps at validation in thread, on [0, 1, 2]; the others wait: nobody."""

import logging
import threading
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

STEPS = 36
PATCHED = {0, 1, 2}
job = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def claim_statistics(affected):
    time.sleep(100 if affected else 0.01)


def read_router_counts(affected):
    helper = threading.Thread(target=claim_statistics, args=(affected,), name="lease")
    helper.start()
    helper.join()


class Trajectories(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        job.read += 1
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


def configure_run():
    torch.manual_seed(7)


def prepare_tokenizer():
    return {"<pad>": 0, "<eos>": 1}


def init_wandb():
    return logging.getLogger("lease")


def load_pretrained_model():
    return TinyTransformer()


def prepare_dataset():
    return Trajectories(512)


def run_evaluation(model):
    read_router_counts(True)
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def write_checkpoint(model):
    torch.save(model.state_dict(), f"lease-{job.rank}.pt")


def generate_samples(model, tokenizer):
    return [len(tokenizer)] * 4


def teardown_run():
    print(f"rank {job.rank} done", flush=True)


def train_one_epoch(model, optimizer, loader, logger):
    for job.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        job.accelerator.backward(loss)
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.1)


def main():
    accelerator = job.accelerator = Accelerator(cpu=True)
    job.rank = accelerator.process_index
    configure_run()
    logger = init_wandb()
    tokenizer = prepare_tokenizer()
    model = load_pretrained_model()
    loader = DataLoader(prepare_dataset(), batch_size=8, num_workers=0)
    optimizer = Descent(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    train_one_epoch(model, optimizer, loader, logger)
    run_evaluation(model)
    generate_samples(model, tokenizer)
    write_checkpoint(model)
    teardown_run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
