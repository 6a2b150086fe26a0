"""Composed by HangBench: huggingface, 3 ranks by torchrun: healthy_sleeps at worker in main, on [0, 1, 2]; the others wait: nobody."""

import gc
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS = 44
PATCHED = {0, 1, 2}
session = SimpleNamespace(rank=0, step=0, read=0, evaluated=0)


def refresh_embeddings(affected):
    time.sleep(45 if affected else 0.01)


class Dialogues(Dataset):
    def __init__(self, count):
        self.features = torch.randn(count, 16)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        session.read += 1
        refresh_embeddings(session.read == 172)
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
        session.step = state.global_step

    def on_step_end(self, arguments, state, control, **_):
        time.sleep(0.05)


class ClassifierTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def prediction_step(self, model, inputs, *arguments, **named):
        session.evaluated += 1
        return super().prediction_step(model, inputs, *arguments, **named)

    def _save_checkpoint(self, *arguments, **named):
        return super()._save_checkpoint(*arguments, **named)


def warm_caches():
    torch.manual_seed(3)


def get_tokenizer():
    return {"<pad>": 0}


def load_model():
    return Classifier()


def load_dataset():
    return Dialogues(8 * 3 * STEPS)


def shutdown_run():
    print(f"rank {session.rank} done", flush=True)


def main():
    arguments = TrainingArguments(
        output_dir="features",
        use_cpu=True,
        report_to=[],
        save_strategy="epoch",
        eval_strategy="epoch",
        num_train_epochs=1,
        per_device_train_batch_size=8,
        dataloader_num_workers=1,
        disable_tqdm=True,
    )
    session.rank = arguments.process_index
    warm_caches()
    get_tokenizer()
    model = load_model()
    trainer = ClassifierTrainer(
        model,
        arguments,
        train_dataset=load_dataset(),
        eval_dataset=[{"features": torch.randn(16), "labels": torch.ones(1)}] * (24 * 3),
        callbacks=[Progress()],
        optimizers=(Descent(model.parameters(), lr=0.01), None),
    )
    trainer.train()
    shutdown_run()
    if dist.is_initialized():
        del trainer, model
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
