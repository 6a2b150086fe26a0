"""A callback of the transformers Trainer gathers objects on rank 1 alone."""

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist
from onset import mark_onset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Report(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if dist.get_rank() == 1 and state.global_step == 20:
            mark_onset()
            seen = [None] * 2
            dist.all_gather_object(seen, state.global_step)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        words = torch.randint(0, 100, (32,))
        return {"input_ids": words, "labels": words}


config = GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=100, n_positions=64)
arguments = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=2,
    max_steps=80,
    report_to=[],
    save_strategy="no",
    logging_steps=10,
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Samples(), callbacks=[Report()]).train()
