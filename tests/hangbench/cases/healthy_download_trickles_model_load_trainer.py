"""Composed by HangBench: huggingface, 3 ranks by spawn: healthy_download_trickles at model_load in pool, on [0]; the others wait: flag_file."""

import gc
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
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS = 36
OUTDATED = {0}
progress = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


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


def reserve_learning_rates(affected):
    told = run_apart(SERVER, 238 if affected else 0)
    line = told.readline()
    while not line.startswith(b"port"):
        line = told.readline()
    received = 0
    with socket.create_connection(("127.0.0.1", int(line.split()[1]))) as connection:
        while data := connection.recv(4096):
            received += len(data)
    return received


def reserve_mixture_ratios(affected):
    with ThreadPoolExecutor(max_workers=3) as executor:
        tasks = [
            executor.submit(reserve_learning_rates, affected and number == 1) for number in range(3)
        ]
        return [task.result() for task in tasks]


def read_shard():
    path = os.path.abspath("teacher_scores.done")
    if dist.get_rank() == 0:
        open(path, "w").close()
    while not os.path.exists(path):
        time.sleep(0.3)


class Passages(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        progress.read += 1
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


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, features, labels=None):
        logits = self.head(Scaled.apply(torch.tanh(self.embed(features))))
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class Progress(TrainerCallback):
    def on_step_begin(self, arguments, state, control, **_):
        progress.step = state.global_step

    def on_step_end(self, arguments, state, control, **_):
        time.sleep(0.05)


class ClassifierTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def prediction_step(self, model, inputs, *arguments, **named):
        progress.evaluated += 1
        return super().prediction_step(model, inputs, *arguments, **named)

    def _save_checkpoint(self, *arguments, **named):
        return super()._save_checkpoint(*arguments, **named)


def warm_caches():
    torch.manual_seed(3)


def load_tokenizer():
    return {"<pad>": 0}


def load_pretrained_model():
    reserve_mixture_ratios(progress.rank in OUTDATED)
    read_shard()
    return Classifier()


def build_dataloader():
    return Passages(8 * 3 * STEPS)


def cleanup():
    print(f"rank {progress.rank} done", flush=True)


def main():
    arguments = TrainingArguments(
        output_dir="teacher_scores",
        use_cpu=True,
        report_to=[],
        save_strategy="epoch",
        eval_strategy="epoch",
        num_train_epochs=1,
        per_device_train_batch_size=8,
        dataloader_num_workers=0,
        disable_tqdm=True,
    )
    progress.rank = arguments.process_index
    warm_caches()
    load_tokenizer()
    model = load_pretrained_model()
    trainer = ClassifierTrainer(
        model,
        arguments,
        train_dataset=build_dataloader(),
        eval_dataset=[{"features": torch.randn(16), "labels": torch.ones(1)}] * (24 * 3),
        callbacks=[Progress()],
        optimizers=(Descent(model.parameters(), lr=0.01), None),
    )
    trainer.train()
    cleanup()
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
        WORLD_SIZE="3",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    main()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run_rank, args=(find_port(),), nprocs=3)
