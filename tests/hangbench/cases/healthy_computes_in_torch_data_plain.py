"""Composed by HangBench: plain, 4 ranks by own: healthy_computes_in_torch at data in pool, on [0, 1, 2, 3]; the others wait: nobody."""

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
from torch.utils.data import DataLoader, Dataset

STEPS = 52
SLOW_HOSTS = {0, 1, 2, 3}
job = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def reserve_prompts(affected):
    features, until = torch.rand(600, 600), time.monotonic() + (166 if affected else 0.01)
    while time.monotonic() < until:
        features = torch.tanh(features @ features)
    return features


def update_lease(affected):
    with ThreadPoolExecutor(max_workers=3) as executor:
        tasks = [executor.submit(reserve_prompts, affected and number == 1) for number in range(3)]
        return [task.result() for task in tasks]


class Recordings(Dataset):
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


def check_environment():
    torch.manual_seed(7)


def get_tokenizer():
    return {"<pad>": 0, "<eos>": 1}


def make_logger():
    return logging.getLogger("embeddings")


def load_model():
    return TinyTransformer()


def build_dataloader():
    update_lease(True)
    return Recordings(512)


def evaluate(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def save_model_state(model):
    torch.save(model.state_dict(), f"embeddings-{job.rank}.pt")


def generate_completions(model, tokenizer):
    return [len(tokenizer)] * 4


def shutdown_run():
    print(f"rank {job.rank} done", flush=True)


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def fit(model, optimizer, loader, logger):
    for job.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.1)


def main():
    dist.init_process_group("gloo")
    job.rank = dist.get_rank()
    check_environment()
    logger = make_logger()
    tokenizer = get_tokenizer()
    model = load_model()
    loader = DataLoader(build_dataloader(), batch_size=8, num_workers=0)
    optimizer = Descent(model.parameters(), lr=0.01)
    fit(model, optimizer, loader, logger)
    evaluate(model)
    generate_completions(model, tokenizer)
    save_model_state(model)
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
