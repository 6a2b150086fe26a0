"""Rank 0 trains a tokenizer, whose library reads texts in a thread of its own, from a dead server."""

import socket

import torch.distributed as dist
from onset import mark_onset
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer


def texts(address):
    with socket.create_connection(address) as connection:
        for page in range(10):
            yield f"page {page}"
        mark_onset()
        yield connection.recv(1024).decode()


def learn_tokens(address):
    tokenizer = Tokenizer(BPE())
    tokenizer.train_from_iterator(texts(address), BpeTrainer(vocab_size=50, show_progress=False))
    return tokenizer


def main():
    dist.init_process_group("gloo")
    with socket.create_server(("127.0.0.1", 0)) as server:
        if dist.get_rank() == 0:
            learn_tokens(server.getsockname())
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
