"""Rank 0 loads a model from storage that delivers a weight every 2 s; the others wait for it."""

import tempfile
import time

import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

import lightning_hangcheck as hc


def slow_storage(make_bar, arguments, named):
    def weights():
        for weight in arguments[0]:
            time.sleep(2)
            yield weight

    return make_bar(weights(), **named)


def load_model(folder):
    return hc.transformers.load_pretrained(folder, GPT2LMHeadModel, test_generation=False)


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64}
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(folder, max_shard_size="60KB")
        logging.set_tqdm_hook(slow_storage)
        load_model(folder)
dist.barrier()
dist.destroy_process_group()
