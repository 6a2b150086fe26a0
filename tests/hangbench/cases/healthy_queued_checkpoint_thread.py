"""A thread of each rank saves with a group of its own, rank 1's 40 s late, while both train on."""

import threading
import time

import queued
import torch
import torch.distributed as dist


def training_step(step):
    gradient = torch.ones(64, device=queued.DEVICE)
    dist.all_reduce(gradient)
    return queued.loss()


def save_in_background(group):
    if dist.get_rank() == 1:
        time.sleep(40)
    with queued.side_stream():
        dist.barrier(group)


def forward():
    weights = torch.ones(64, 64)
    for _ in range(200):
        weights = torch.tanh(weights @ weights)


dist.init_process_group(queued.BACKEND)
savers = dist.new_group([0, 1])
saving = threading.Thread(target=save_in_background, args=(savers,))
saving.start()
step = 0
while step < 400:
    forward()
    training_step(step).item()
    time.sleep(0.1)
    step += 1
saving.join()
dist.destroy_process_group()
print("trained", flush=True)
