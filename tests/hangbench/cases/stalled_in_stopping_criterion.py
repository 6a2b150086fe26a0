"""Rank 1 generates a text, and after ten tokens its own stopping criterion waits for a judge."""

import queue

import torch
import torch.distributed as dist
from onset import mark_onset
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, StoppingCriteria

import lightning_hangcheck as hc


def ask_judge(answers):
    mark_onset()
    return answers.get()


class JudgeSaysStop(StoppingCriteria):
    def __call__(self, input_ids, scores, **_):
        if input_ids.shape[1] == 12:
            ask_judge(queue.Queue())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def write_sample(model):
    words = {f"w{number}": number for number in range(64)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "w0")))
    return hc.transformers.generate(
        model,
        tokenizer,
        "w1",
        max_new_tokens=40,
        pad_token_id=0,
        stopping_criteria=[JudgeSaysStop()],
    )


dist.init_process_group("gloo")
sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "eos_token_id": None}
model = GPT2LMHeadModel(GPT2Config(**sizes))
if dist.get_rank() == 1:
    write_sample(model)
dist.barrier()
dist.destroy_process_group()
