"""Rank 0 generates a sample text slowly, token by token; the others wait for it."""

import time

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessor, LogitsProcessorList


class LargeModel(LogitsProcessor):
    def __call__(self, input_ids, scores):
        end = time.monotonic() + 0.25
        while time.monotonic() < end:
            scores = torch.softmax(scores @ torch.ones(64, 64), dim=-1)
        return scores


def write_sample(model):
    prompt = torch.ones(1, 4, dtype=torch.long)
    slow = LogitsProcessorList([LargeModel()])
    return model.generate(
        prompt, max_new_tokens=60, do_sample=False, logits_processor=slow, pad_token_id=0
    )


dist.init_process_group("gloo")
sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "eos_token_id": None}
model = GPT2LMHeadModel(GPT2Config(**sizes))
if dist.get_rank() == 0:
    write_sample(model)
dist.barrier()
dist.destroy_process_group()
