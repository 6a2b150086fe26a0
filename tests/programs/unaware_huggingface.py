"""A script that never heard of this package: Hugging Face's Trainer, tiny and offline."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

SIZE = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 8, "n_positions": 8}


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"input_ids": torch.ones(4).long(), "labels": torch.ones(4).long()}


model = GPT2LMHeadModel(GPT2Config(**SIZE, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    "out", num_train_epochs=1, per_device_train_batch_size=2, report_to=[]
)
trainer = Trainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences())
trainer.train()
trainer.evaluate()
print(f"{trainer.state.global_step} steps")
