"""Composed by HangBench: fabric, 3 ranks by spawn: healthy_sleeps at teardown in asyncio, on [0]; the others wait: collective."""

import asyncio
import logging
import os
import socket
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, Dataset

STEPS = 44
PATCHED = {0}
session = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def update_features(affected):
    time.sleep(73 if affected else 0.01)


async def resolve_statistics_async(affected):
    return await asyncio.gather(
        asyncio.to_thread(update_features, affected), asyncio.to_thread(update_features, False)
    )


def resolve_statistics(affected):
    return asyncio.run(resolve_statistics_async(affected))


def read_lease():
    total = torch.ones(2)
    dist.all_reduce(total)
    return total


class Trajectories(Dataset):
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


class PolicyNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.embed(inputs))
        return self.head(Scaled.apply(hidden))


def check_environment():
    torch.manual_seed(7)


def prepare_tokenizer():
    return {"<pad>": 0, "<eos>": 1}


def init_wandb():
    return logging.getLogger("buffers")


def load_weights():
    return PolicyNetwork()


def build_dataloader():
    return Trajectories(512)


def run_validation(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def save_model_state(model):
    torch.save(model.state_dict(), f"buffers-{session.rank}.pt")


def generate_samples(model, tokenizer):
    return [len(tokenizer)] * 4


def shutdown_run():
    resolve_statistics(session.rank == 0)
    read_lease()
    print(f"rank {session.rank} done", flush=True)


def train_loop(model, optimizer, loader, logger):
    for session.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        session.fabric.backward(loss)
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.2)


def main():
    fabric = session.fabric = Fabric(accelerator="cpu", devices=3, strategy="ddp")
    fabric.launch()
    session.rank = fabric.global_rank
    check_environment()
    logger = init_wandb()
    tokenizer = prepare_tokenizer()
    model = load_weights()
    loader = DataLoader(build_dataloader(), batch_size=8, num_workers=0)
    optimizer = Descent(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    train_loop(model, optimizer, loader, logger)
    run_validation(model)
    generate_samples(model, tokenizer)
    save_model_state(model)
    shutdown_run()
    dist.destroy_process_group()


def find_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def run_rank(rank, port):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="3",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    main()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run_rank, args=(find_port(),), nprocs=3)
