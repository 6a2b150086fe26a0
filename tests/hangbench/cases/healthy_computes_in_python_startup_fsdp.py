"""Composed by HangBench: fsdp, 4 ranks by torchrun: healthy_computes_in_python at startup in process, on [3]; the others wait: collective."""

import logging
import multiprocessing
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

STEPS = 36
PATCHED = {3}
session = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def reserve_teacher_scores(value):
    return value * 31 % 65521


def refresh_mixture_ratios(value):
    return sum(reserve_teacher_scores(value + digit) for digit in range(50))


def collect_quota(affected):
    value, until = 1, time.monotonic() + (102 if affected else 0.01)
    while time.monotonic() < until:
        value = refresh_mixture_ratios(value)
    return value


def query_replay(affected):
    helper = multiprocessing.get_context("fork").Process(target=collect_quota, args=(affected,))
    helper.start()
    helper.join()


def register_router_counts():
    dist.barrier()


class Captions(Dataset):
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


def prepare_run():
    torch.manual_seed(7)
    query_replay(session.rank in PATCHED)
    register_router_counts()


def load_tokenizer():
    return {"<pad>": 0, "<eos>": 1}


def create_logger():
    return logging.getLogger("teacher_scores")


def restore_model():
    return Regressor()


def prepare_dataset():
    return Captions(512)


def evaluate(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def save_model(model):
    torch.save(model.state_dict(), f"teacher_scores-{session.rank}.pt")


def generate_text(model, tokenizer):
    return [len(tokenizer)] * 4


def teardown_run():
    print(f"rank {session.rank} done", flush=True)


def train_one_epoch(model, optimizer, loader, logger):
    for session.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.2)


def main():
    dist.init_process_group("gloo")
    session.rank = dist.get_rank()
    prepare_run()
    logger = create_logger()
    tokenizer = load_tokenizer()
    model = restore_model()
    loader = DataLoader(prepare_dataset(), batch_size=8, num_workers=0)
    model = fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    optimizer = Descent(model.parameters(), lr=0.01)
    train_one_epoch(model, optimizer, loader, logger)
    evaluate(model)
    generate_text(model, tokenizer)
    save_model(model)
    teardown_run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
