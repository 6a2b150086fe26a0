"""Tiny jobs of transformers' Trainer: one that a scene parts, and one that none does.

Argument: ``stops_alone``, where a callback ends training on the loss of its own rank, mended by
EarlyStoppingCallback, whose metric is gathered from all ranks; or ``robust``: with evaluation,
saves and that.
"""

import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

EVALUATED = {"eval_strategy": "steps", "eval_steps": 100, "metric_for_best_model": "eval_loss"}
SAVED = {"save_strategy": "steps", "save_steps": 100, "load_best_model_at_end": True}


class Samples(Dataset):
    def __init__(self, number):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(number, 8, generator=generator)
        self.y = torch.randint(0, 2, (number,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Remembering(Trainer):
    last = 1.0

    def compute_loss(self, *given, **named):
        loss = super().compute_loss(*given, **named)
        Remembering.last = float(loss[0] if isinstance(loss, tuple) else loss)
        return loss


class Stopping(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = Remembering.last < 1e-4


robust = sys.argv[1] == "robust"
kind, callback = (Trainer, EarlyStoppingCallback(2)) if robust else (Remembering, Stopping())
kind(
    model=Model(),
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_train_epochs=3,
        report_to=[],
        disable_tqdm=True,
        **({**EVALUATED, **SAVED} if robust else {"save_strategy": "no"}),
    ),
    train_dataset=Samples(256),
    eval_dataset=Samples(64),
    callbacks=[callback],
).train()
