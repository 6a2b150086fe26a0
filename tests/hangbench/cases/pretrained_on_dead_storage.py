"""Rank 1 loads a model in shards, one of which storage never delivers; a pipe stands for it."""

import os
import tempfile
from pathlib import Path

import torch.distributed as dist
from onset import mark_onset
from transformers import GPT2Config, GPT2LMHeadModel

import lightning_hangcheck as hc


def save_model(folder):
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 2, "vocab_size": 64}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(folder, max_shard_size="60KB")


def lose_a_shard(folder):
    shard = sorted(Path(folder).glob("*.safetensors"))[1]
    shard.unlink()
    os.mkfifo(shard)


def load_model(folder):
    mark_onset()
    return hc.transformers.load_pretrained(folder, GPT2LMHeadModel)


folder = tempfile.mkdtemp()
save_model(folder)  # every rank its own: once they are joined, transformers saves on rank 0 only
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    lose_a_shard(folder)
    load_model(folder)
dist.barrier()
dist.destroy_process_group()
