"""A tiny job of transformers' Trainer."""

import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


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


def trainer(kind=Trainer, callbacks=(), **given):
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_train_epochs=3,
        report_to=[],
        disable_tqdm=True,
        **{"save_strategy": "no", **given},
    )
    made = kind(
        model=Model(),
        args=arguments,
        train_dataset=Samples(256),
        eval_dataset=Samples(64),
        callbacks=list(callbacks),
    )
    made.train()
    return made
