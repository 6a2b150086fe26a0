"""Ranks of several nodes reduce together, step after step; one may stop in its own code.

``nodes_training.py STEPS [RANK]``: after STEPS the job ends well, or that rank stands still.
"""

import sys
import time

import torch
import torch.distributed as dist

import lightning_hangcheck as hc


def stand_still():
    time.sleep(100_000)


def train(steps):
    total = torch.ones(4)
    for step in range(steps):
        if step % 10 == 0:
            print(f"made {step} steps", flush=True)
        dist.all_reduce(total)
        total /= dist.get_world_size()
        time.sleep(0.05)
    return total


dist.init_process_group("gloo")
hc.checkpoint("Ranks have met")
train(int(sys.argv[1]))
if len(sys.argv) > 2:
    if dist.get_rank() == int(sys.argv[2]):
        stand_still()
    train(1)
dist.destroy_process_group()
