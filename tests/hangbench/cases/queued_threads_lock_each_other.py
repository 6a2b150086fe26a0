"""Two threads of rank 1 lock each other out; rank 0 is ahead of its GPU and waits."""

import threading

import queued
import torch
import torch.distributed as dist
from onset import mark_onset


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


cache, index = threading.Lock(), threading.Lock()
both = threading.Barrier(2)


def rebuild_index():
    with index:
        both.wait()
        with cache:
            pass


def update_cache():
    with cache:
        both.wait()
        mark_onset()
        with index:
            pass


dist.init_process_group(queued.BACKEND)
for step in range(120):
    loss = training_step(step)
    if step == 60 and dist.get_rank() == 1:
        threading.Thread(target=rebuild_index, daemon=True).start()
        update_cache()
    if step % 50 == 49:
        loss.cpu()
dist.destroy_process_group()
