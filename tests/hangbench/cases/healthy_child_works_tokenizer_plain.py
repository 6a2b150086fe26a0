"""Composed by HangBench: plain, 3 ranks by own: healthy_child_works at tokenizer in pool, on [2]; the others wait: p2p."""

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

STEPS = 44
LATE_RANKS = {2}
session = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def look_up_mixture_ratios(affected):
    program = "import sys, time; until = time.monotonic() + float(sys.argv[1])\n"
    program += "while time.monotonic() < until: sum(range(10000))"
    length = str(73 if affected else 0.01)
    subprocess.run([sys.executable, "-c", program, length], check=True)


def query_index(affected):
    with ThreadPoolExecutor(max_workers=3) as executor:
        tasks = [
            executor.submit(look_up_mixture_ratios, affected and number == 1) for number in range(3)
        ]
        return [task.result() for task in tasks]


def collect_cache():
    token, rank, last = torch.zeros(4), dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        dist.recv(token, src=rank - 1)
    if rank < last:
        dist.send(token, dst=rank + 1)
    dist.barrier()


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


class Classifier(nn.Module):
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
    query_index(session.rank in LATE_RANKS)
    collect_cache()
    return {"<pad>": 0, "<eos>": 1}


def setup_mlflow():
    return logging.getLogger("priorities")


def restore_model():
    return Classifier()


def load_dataset():
    return Trajectories(512)


def evaluate_perplexity(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def save_checkpoint(model):
    torch.save(model.state_dict(), f"priorities-{session.rank}.pt")


def generate_text(model, tokenizer):
    return [len(tokenizer)] * 4


def shutdown_run():
    print(f"rank {session.rank} done", flush=True)


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def run_training(model, optimizer, loader, logger):
    for session.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.1)


def main():
    dist.init_process_group("gloo")
    session.rank = dist.get_rank()
    configure_run()
    logger = setup_mlflow()
    tokenizer = prepare_tokenizer()
    model = restore_model()
    loader = DataLoader(load_dataset(), batch_size=8, num_workers=0)
    optimizer = Descent(model.parameters(), lr=0.01)
    run_training(model, optimizer, loader, logger)
    evaluate_perplexity(model)
    generate_text(model, tokenizer)
    save_checkpoint(model)
    shutdown_run()
    dist.destroy_process_group()


def launch():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = []
    for rank in range(3):
        environment = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="3",
            LOCAL_WORLD_SIZE="3",
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
