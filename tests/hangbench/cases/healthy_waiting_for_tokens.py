"""Rank 0 generates a text, and sleeps for each token, as if it came from far away."""

import time

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessor, LogitsProcessorList


class RemoteModel(LogitsProcessor):
    def __call__(self, input_ids, scores):
        time.sleep(0.25)
        return scores


def write_sample(model):
    prompt = torch.ones(1, 4, dtype=torch.long)
    slow = LogitsProcessorList([RemoteModel()])
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
