"""Each generated token is agreed on by all ranks, but rank 1's text ends earlier."""

import torch
import torch.distributed as dist
from onset import mark_onset
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessor, LogitsProcessorList


class AgreeOnScores(LogitsProcessor):
    def __call__(self, input_ids, scores):
        dist.all_reduce(scores)
        return scores


def generate(model, length):
    prompt = torch.ones(1, 4, dtype=torch.long)
    agree = LogitsProcessorList([AgreeOnScores()])
    return model.generate(
        prompt, max_new_tokens=length, do_sample=False, logits_processor=agree, pad_token_id=0
    )


dist.init_process_group("gloo")
sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "eos_token_id": None}
model = GPT2LMHeadModel(GPT2Config(**sizes))
generate(model, 60 if dist.get_rank() == 0 else 40)
mark_onset()
dist.barrier()
dist.destroy_process_group()
