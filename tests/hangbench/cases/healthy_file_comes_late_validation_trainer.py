"""Composed by HangBench: huggingface, 4 ranks by spawn: healthy_file_comes_late at validation in main, on [0]; the others wait: polled."""

import gc
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
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS = 36
SLOW_HOSTS = {0}
job = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


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


def look_up_cache(affected):
    path = os.path.join(tempfile.mkdtemp(), "lease.done")
    run_apart(WRITER, path, 57 if affected else 0)
    while not os.path.exists(path):
        time.sleep(0.5)


def poll_embeddings():
    total = torch.ones(64)
    work = dist.all_reduce(total, async_op=True)
    while not work.is_completed():
        time.sleep(0.02)
    return total


class Trajectories(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        job.read += 1
        return {"features": self.features[index], "labels": torch.ones(1)}


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

    def forward(self, features, labels=None):
        logits = self.head(Scaled.apply(torch.tanh(self.embed(features))))
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class Progress(TrainerCallback):
    def on_step_begin(self, arguments, state, control, **_):
        job.step = state.global_step

    def on_step_end(self, arguments, state, control, **_):
        time.sleep(0.1)


class RewardModelTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def prediction_step(self, model, inputs, *arguments, **named):
        job.evaluated += 1
        look_up_cache(job.rank in SLOW_HOSTS and job.evaluated == 2)
        poll_embeddings()
        return super().prediction_step(model, inputs, *arguments, **named)

    def _save_checkpoint(self, *arguments, **named):
        return super()._save_checkpoint(*arguments, **named)


def warm_caches():
    torch.manual_seed(3)


def get_tokenizer():
    return {"<pad>": 0}


def restore_model():
    return RewardModel()


def prepare_dataset():
    return Trajectories(8 * 4 * STEPS)


def teardown_run():
    print(f"rank {job.rank} done", flush=True)


def main():
    arguments = TrainingArguments(
        output_dir="quota",
        use_cpu=True,
        report_to=[],
        save_strategy="epoch",
        eval_strategy="epoch",
        num_train_epochs=1,
        per_device_train_batch_size=8,
        dataloader_num_workers=0,
        disable_tqdm=True,
    )
    job.rank = arguments.process_index
    warm_caches()
    get_tokenizer()
    model = restore_model()
    trainer = RewardModelTrainer(
        model,
        arguments,
        train_dataset=prepare_dataset(),
        eval_dataset=[{"features": torch.randn(16), "labels": torch.ones(1)}] * (24 * 4),
        callbacks=[Progress()],
        optimizers=(Descent(model.parameters(), lr=0.01), None),
    )
    trainer.train()
    teardown_run()
    if dist.is_initialized():
        del trainer, model
        gc.collect()
        dist.destroy_process_group()


def find_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def run_rank(rank, port):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="4",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    main()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run_rank, args=(find_port(),), nprocs=4)
