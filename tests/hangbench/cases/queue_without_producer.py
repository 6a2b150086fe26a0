"""Rank 1 waits for a sample from a queue whose producer has ended."""

import queue
import threading

import torch
import torch.distributed as dist
from onset import mark_onset


def produce(samples):
    samples.put(torch.ones(4))


def next_sample(samples):
    return samples.get()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    samples = queue.Queue()
    threading.Thread(target=produce, args=(samples,)).start()
    next_sample(samples)
    mark_onset()
    next_sample(samples)
dist.barrier()
dist.destroy_process_group()
