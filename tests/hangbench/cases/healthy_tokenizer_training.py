"""Rank 0 trains a tokenizer, whose threads work outside Python; the others wait."""

import os
import random
import time

import torch.distributed as dist
from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import Whitespace


def some_words(count):
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(random.choices(letters, k=6)) for _ in range(count))


def train_tokenizer():
    texts = [some_words(50) for _ in range(2000)]
    end = time.monotonic() + 12
    while time.monotonic() < end:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = Whitespace()
        trainer = trainers.BpeTrainer(vocab_size=5000, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)


os.environ["TOKENIZERS_PARALLELISM"] = "true"
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    train_tokenizer()
dist.barrier()
dist.destroy_process_group()
