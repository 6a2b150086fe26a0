"""transformers' Trainer trains a small network, with an evaluation on all ranks."""

import tempfile

import torch
import torch.distributed as dist
from transformers import Trainer, TrainingArguments


class Regressor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, features, labels=None):
        output = self.layer(features)
        return {"loss": (output - labels).square().mean(), "logits": output}


samples = [{"features": torch.randn(4), "labels": torch.ones(1)} for _ in range(256)]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=20
)
trainer = Trainer(Regressor(), arguments, train_dataset=samples, eval_dataset=samples)
trainer.train()
trainer.evaluate()
dist.destroy_process_group()
