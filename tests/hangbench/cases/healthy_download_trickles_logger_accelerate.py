"""Composed by HangBench: accelerate, 3 ranks by spawn: healthy_download_trickles at logger in thread, on [0, 1, 2]; the others wait: nobody."""

import logging
import os
import socket
import subprocess
import sys
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
shared = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


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


def claim_learning_rates(affected):
    told = run_apart(SERVER, 154 if affected else 0)
    line = told.readline()
    while not line.startswith(b"port"):
        line = told.readline()
    received = 0
    with socket.create_connection(("127.0.0.1", int(line.split()[1]))) as connection:
        while data := connection.recv(4096):
            received += len(data)
    return received


def update_sampler_order(affected):
    helper = threading.Thread(target=claim_learning_rates, args=(affected,), name="priorities")
    helper.start()
    helper.join()


class Passages(Dataset):
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


class Adapter(nn.Module):
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


def setup_mlflow():
    update_sampler_order(True)
    return logging.getLogger("priorities")


def load_model():
    return Adapter()


def build_dataloader():
    return Passages(512)


def evaluate_perplexity(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def save_model(model):
    torch.save(model.state_dict(), f"priorities-{shared.rank}.pt")


def generate_completions(model, tokenizer):
    return [len(tokenizer)] * 4


def teardown_run():
    print(f"rank {shared.rank} done", flush=True)


def train_one_epoch(model, optimizer, loader, logger):
    for shared.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        shared.accelerator.backward(loss)
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.1)


def main():
    accelerator = shared.accelerator = Accelerator(cpu=True)
    shared.rank = accelerator.process_index
    check_environment()
    logger = setup_mlflow()
    tokenizer = prepare_tokenizer()
    model = load_model()
    loader = DataLoader(build_dataloader(), batch_size=8, num_workers=0)
    optimizer = Descent(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    train_one_epoch(model, optimizer, loader, logger)
    evaluate_perplexity(model)
    generate_completions(model, tokenizer)
    save_model(model)
    teardown_run()
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
