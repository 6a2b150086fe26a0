"""A callback of transformers' Trainer meets the others, but on the main process only."""

import tempfile

import torch
import torch.distributed as dist
from onset import mark_onset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Regressor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, features, labels=None):
        output = self.layer(features)
        return {"loss": (output - labels).square().mean(), "logits": output}


class ReportToMain(TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        if state.is_world_process_zero and state.global_step == 5:
            mark_onset()
            dist.barrier()


samples = [{"features": torch.randn(4), "labels": torch.ones(1)} for _ in range(256)]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", max_steps=20
)
trainer = Trainer(Regressor(), arguments, train_dataset=samples, callbacks=[ReportToMain()])
trainer.train()
dist.destroy_process_group()
