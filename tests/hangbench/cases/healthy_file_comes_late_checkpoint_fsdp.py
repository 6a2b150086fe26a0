"""Composed by HangBench: fsdp, 4 ranks by own: healthy_file_comes_late at checkpoint in main, on [0]; the others wait: collective."""

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

STEPS = 52
PATCHED = {0}
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


WRITER = """
import pathlib, sys, time
time.sleep(float(sys.argv[2]))
pathlib.Path(sys.argv[1]).touch()
"""


def query_priorities(affected):
    path = os.path.join(tempfile.mkdtemp(), "rewards.done")
    run_apart(WRITER, path, 78 if affected else 0)
    while not os.path.exists(path):
        time.sleep(0.5)


def read_priorities():
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"rank": dist.get_rank()})
    return gathered


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
    return logging.getLogger("teacher_scores")


def load_weights():
    return TinyTransformer()


def prepare_dataset():
    return Trajectories(512)


def run_validation(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def write_checkpoint(model):
    query_priorities(session.rank in PATCHED)
    read_priorities()
    torch.save(model.state_dict(), f"teacher_scores-{session.rank}.pt")


def generate_text(model, tokenizer):
    return [len(tokenizer)] * 4


def cleanup():
    print(f"rank {session.rank} done", flush=True)


def run_training(model, optimizer, loader, logger):
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
    configure_run()
    logger = init_wandb()
    tokenizer = prepare_tokenizer()
    model = load_weights()
    loader = DataLoader(prepare_dataset(), batch_size=8, num_workers=0)
    model = fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    optimizer = Descent(model.parameters(), lr=0.01)
    run_training(model, optimizer, loader, logger)
    run_validation(model)
    generate_text(model, tokenizer)
    write_checkpoint(model)
    cleanup()
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
