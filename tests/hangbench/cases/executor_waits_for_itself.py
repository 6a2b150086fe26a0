"""A task on rank 1's only thread waits for another task on the same thread."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from onset import mark_onset

threads = ThreadPoolExecutor(max_workers=1)


def tokenize(text):
    return text.split()


def tokenize_file():
    return threads.submit(tokenize, "one text").result()


def tokenize_all():
    mark_onset()
    return threads.submit(tokenize_file).result()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    tokenize_all()
dist.barrier()
dist.destroy_process_group()
