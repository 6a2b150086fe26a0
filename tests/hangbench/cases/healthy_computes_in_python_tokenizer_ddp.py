"""Composed by HangBench: ddp, 3 ranks by own: healthy_computes_in_python at tokenizer in process, on [2]; the others wait: flag_file."""

import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 52
PATCHED = {2}
progress = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def resolve_priorities(value):
    return value * 31 % 65521


def read_replay(value):
    return sum(resolve_priorities(value + digit) for digit in range(50))


def look_up_token_budget(affected):
    value, until = 1, time.monotonic() + (187 if affected else 0.01)
    while time.monotonic() < until:
        value = read_replay(value)
    return value


def refresh_prompts(affected):
    helper = multiprocessing.get_context("fork").Process(
        target=look_up_token_budget, args=(affected,)
    )
    helper.start()
    helper.join()


def read_router_counts():
    path = os.path.abspath("sampler_order.done")
    if dist.get_rank() == 2:
        open(path, "w").close()
    while not os.path.exists(path):
        time.sleep(0.3)


class Recordings(Dataset):
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


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.embed(inputs))
        return self.head(Scaled.apply(hidden))


def prepare_run():
    torch.manual_seed(7)


def load_tokenizer():
    refresh_prompts(progress.rank in PATCHED)
    read_router_counts()
    return {"<pad>": 0, "<eos>": 1}


def make_logger():
    return logging.getLogger("sampler_order")


def restore_model():
    return Adapter()


def prepare_dataset():
    return Recordings(512)


def evaluate_perplexity(model):
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def save_model(model):
    torch.save(model.state_dict(), f"sampler_order-{progress.rank}.pt")


def generate_completions(model, tokenizer):
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
        time.sleep(0.05)


def main():
    dist.init_process_group("gloo")
    progress.rank = dist.get_rank()
    prepare_run()
    logger = make_logger()
    tokenizer = load_tokenizer()
    model = restore_model()
    loader = DataLoader(prepare_dataset(), batch_size=8, num_workers=0)
    model = DistributedDataParallel(model)
    optimizer = Descent(model.parameters(), lr=0.01)
    train_loop(model, optimizer, loader, logger)
    evaluate_perplexity(model)
    generate_completions(model, tokenizer)
    save_model(model)
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
