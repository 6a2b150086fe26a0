"""Composed by HangBench: plain, 4 ranks by torchrun: healthy_computes_in_python at validation in process, on [3]; the others wait: store."""

import logging
import multiprocessing
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

STEPS = 36
SLOW_HOSTS = {3}
progress = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def poll_teacher_scores(value):
    return value * 31 % 65521


def look_up_token_budget(value):
    return sum(poll_teacher_scores(value + digit) for digit in range(50))


def poll_rewards(affected):
    value, until = 1, time.monotonic() + (231 if affected else 0.01)
    while time.monotonic() < until:
        value = look_up_token_budget(value)
    return value


def reserve_features(affected):
    helper = multiprocessing.get_context("fork").Process(target=poll_rewards, args=(affected,))
    helper.start()
    helper.join()


def update_learning_rates():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 3:
        store.set("manifest", "1")
    store.wait(["manifest"])


class Trajectories(Dataset):
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


class RewardModel(nn.Module):
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


def make_logger():
    return logging.getLogger("manifest")


def restore_model():
    return RewardModel()


def build_dataloader():
    return Trajectories(512)


def run_validation(model):
    reserve_features(progress.rank in SLOW_HOSTS)
    update_learning_rates()
    with torch.no_grad():
        return float(model(torch.randn(4, 16)).mean())


def save_model(model):
    torch.save(model.state_dict(), f"manifest-{progress.rank}.pt")


def generate_completions(model, tokenizer):
    return [len(tokenizer)] * 4


def shutdown_run():
    print(f"rank {progress.rank} done", flush=True)


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def train_loop(model, optimizer, loader, logger):
    for progress.step, (inputs, targets) in zip(range(STEPS), loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        logger.debug("loss %.3f", loss.item())
        time.sleep(0.2)


def main():
    dist.init_process_group("gloo")
    progress.rank = dist.get_rank()
    check_environment()
    logger = make_logger()
    tokenizer = prepare_tokenizer()
    model = restore_model()
    loader = DataLoader(build_dataloader(), batch_size=8, num_workers=0)
    optimizer = Descent(model.parameters(), lr=0.01)
    train_loop(model, optimizer, loader, logger)
    run_validation(model)
    generate_completions(model, tokenizer)
    save_model(model)
    shutdown_run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
