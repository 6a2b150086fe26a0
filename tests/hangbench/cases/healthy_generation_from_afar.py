"""Rank 0 generates a text whose every token takes 3 s to come from afar; the others wait."""

import time

import torch.distributed as dist
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessor, PreTrainedTokenizerFast

import lightning_hangcheck as hc


class RemoteModel(LogitsProcessor):
    def __call__(self, input_ids, scores):
        time.sleep(3)
        return scores


def write_sample(model):
    words = {f"w{number}": number for number in range(64)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "w0")))
    return hc.transformers.generate(
        model, tokenizer, "w1", max_new_tokens=8, pad_token_id=0, logits_processor=[RemoteModel()]
    )


dist.init_process_group("gloo")
sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "eos_token_id": None}
model = GPT2LMHeadModel(GPT2Config(**sizes))
if dist.get_rank() == 0:
    write_sample(model)
dist.barrier()
dist.destroy_process_group()
