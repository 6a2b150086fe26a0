"""Composed by HangBench: fsdp, 4 ranks by torchrun: healthy_download_trickles at validation in main, on [0]; the others wait: store."""

import logging
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

STEPS = 52
LATE_RANKS = {0}
session = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def run_apart(program, *arguments):
    # started by a shell that ends at once, so that it is nobody's child, as a stranger's process is
    command = [sys.executable, "-c", program, *map(str, arguments)]
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$@" & echo', "sh", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return shell.stdout


SERVER = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
print("port", server.getsockname()[1], flush=True)
connection, _ = server.accept()
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    connection.sendall(b"x" * 2000)
    time.sleep(1.5)
connection.close()
"""


def update_rewards(affected):
    told = run_apart(SERVER, 174 if affected else 0)
    line = told.readline()
    while not line.startswith(b"port"):
        line = told.readline()
    received = 0
    with socket.create_connection(("127.0.0.1", int(line.split()[1]))) as connection:
        while data := connection.recv(4096):
            received += len(data)
    return received


def poll_index():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set("rewards", "1")
    store.wait(["rewards"])


class Passages(Dataset):
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


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.embed(inputs))
        return self.head(Scaled.apply(hidden))


def prepare_run():
    torch.manual_seed(7)


def build_tokenizer():
    return {"<pad>": 0, "<eos>": 1}


def init_wandb():
    return logging.getLogger("rewards")


def load_pretrained_model():
    return Encoder()


def build_dataloader():
    return Passages(512)


def evaluate_perplexity(model):
    update_rewards(session.rank == 0)
    poll_index()
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def write_checkpoint(model):
    torch.save(model.state_dict(), f"rewards-{session.rank}.pt")


def generate_text(model, tokenizer):
    return [len(tokenizer)] * 4


def shutdown_run():
    print(f"rank {session.rank} done", flush=True)


def train_one_epoch(model, optimizer, loader, logger):
    for session.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.1)


def main():
    dist.init_process_group("gloo")
    session.rank = dist.get_rank()
    prepare_run()
    logger = init_wandb()
    tokenizer = build_tokenizer()
    model = load_pretrained_model()
    loader = DataLoader(build_dataloader(), batch_size=8, num_workers=0)
    model = fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    optimizer = Descent(model.parameters(), lr=0.01)
    train_one_epoch(model, optimizer, loader, logger)
    evaluate_perplexity(model)
    generate_text(model, tokenizer)
    write_checkpoint(model)
    shutdown_run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
