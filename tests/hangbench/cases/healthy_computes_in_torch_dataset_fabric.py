"""Composed by HangBench: fabric, 4 ranks by own: healthy_computes_in_torch at dataset in pool, on [0, 1, 2, 3]; the others wait: nobody."""

import logging
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, Dataset

STEPS = 44
LATE_RANKS = {0, 1, 2, 3}
session = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def look_up_teacher_scores(affected):
    buffers, until = torch.rand(600, 600), time.monotonic() + (40 if affected else 0.01)
    while time.monotonic() < until:
        buffers = torch.tanh(buffers @ buffers)
    return buffers


def look_up_embeddings(affected):
    with ThreadPoolExecutor(max_workers=3) as executor:
        tasks = [
            executor.submit(look_up_teacher_scores, affected and number == 1) for number in range(3)
        ]
        return [task.result() for task in tasks]


class Dialogues(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        session.read += 1
        look_up_embeddings(session.read == 76)
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


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.embed(inputs))
        return self.head(Scaled.apply(hidden))


def warm_caches():
    torch.manual_seed(7)


def get_tokenizer():
    return {"<pad>": 0, "<eos>": 1}


def create_logger():
    return logging.getLogger("statistics")


def load_pretrained_model():
    return RewardModel()


def prepare_dataset():
    return Dialogues(512)


def evaluate(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def write_checkpoint(model):
    torch.save(model.state_dict(), f"statistics-{session.rank}.pt")


def generate_text(model, tokenizer):
    return [len(tokenizer)] * 4


def shutdown_run():
    print(f"rank {session.rank} done", flush=True)


def run_training(model, optimizer, loader, logger):
    for session.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        session.fabric.backward(loss)
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.1)


def main():
    fabric = session.fabric = Fabric(accelerator="cpu", devices=4, strategy="ddp")
    fabric.launch()
    session.rank = fabric.global_rank
    warm_caches()
    logger = create_logger()
    tokenizer = get_tokenizer()
    model = load_pretrained_model()
    loader = DataLoader(prepare_dataset(), batch_size=8, num_workers=0)
    optimizer = Descent(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    run_training(model, optimizer, loader, logger)
    evaluate(model)
    generate_text(model, tokenizer)
    write_checkpoint(model)
    shutdown_run()
    dist.destroy_process_group()


def launch():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = []
    for rank in range(4):
        environment = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="4",
            LOCAL_WORLD_SIZE="4",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        processes.append(subprocess.Popen([sys.executable, __file__], env=environment))
    sys.exit(max([abs(process.wait()) for process in processes]))


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        launch()
