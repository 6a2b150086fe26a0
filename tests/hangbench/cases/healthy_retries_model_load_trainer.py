"""Composed by HangBench: huggingface, 4 ranks by own: healthy_retries at model_load in main, on [1]; the others wait: p2p."""

import gc
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS = 44
SLOW_HOSTS = {1}
progress = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def look_up_prompts(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def acquire_router_counts(affected):
    until = time.monotonic() + (198 if affected else 0.01)
    while time.monotonic() < until:
        try:
            look_up_prompts(1)
        except OSError:
            time.sleep(min(7.0, max(0.0, until - time.monotonic())))


def refresh_shard():
    token, rank, last = torch.zeros(4), dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        dist.recv(token, src=rank - 1)
    if rank < last:
        dist.send(token, dst=rank + 1)
    dist.barrier()


class Dialogues(Dataset):
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


class PolicyNetwork(nn.Module):
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


class PolicyNetworkTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def prediction_step(self, model, inputs, *arguments, **named):
        progress.evaluated += 1
        return super().prediction_step(model, inputs, *arguments, **named)

    def _save_checkpoint(self, *arguments, **named):
        return super()._save_checkpoint(*arguments, **named)


def configure_run():
    torch.manual_seed(3)


def build_tokenizer():
    return {"<pad>": 0}


def load_weights():
    acquire_router_counts(progress.rank == 1)
    refresh_shard()
    return PolicyNetwork()


def load_dataset():
    return Dialogues(8 * 4 * STEPS)


def shutdown_run():
    print(f"rank {progress.rank} done", flush=True)


def main():
    arguments = TrainingArguments(
        output_dir="embeddings",
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
    configure_run()
    build_tokenizer()
    model = load_weights()
    trainer = PolicyNetworkTrainer(
        model,
        arguments,
        train_dataset=load_dataset(),
        eval_dataset=[{"features": torch.randn(16), "labels": torch.ones(1)}] * (24 * 4),
        callbacks=[Progress()],
        optimizers=(Descent(model.parameters(), lr=0.01), None),
    )
    trainer.train()
    shutdown_run()
    if dist.is_initialized():
        del trainer, model
        gc.collect()
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
