"""Ranks of several nodes reduce together, step after step; one may stop or leave the common way.

``nodes_training.py STEPS [RANK [skips|mistakes]]``: after STEPS the job ends well, or that rank
stands still. Or all evaluate and save every STEPS, and the fourth time that rank skips the
collective of the evaluation, or makes another one in its place; that job never ends.
"""

import itertools
import sys
import time

import torch
import torch.distributed as dist

import lightning_hangcheck as hc

DEPARTS_AT = 4


def stand_still():
    time.sleep(100_000)


def evaluate(way):
    if way != "skips":
        operation = dist.reduce if way == "mistakes" else dist.broadcast
        operation(torch.ones(1), 0)


def save():
    dist.barrier()


def train(steps):
    total = torch.ones(4)
    for step in range(steps):
        if step % 10 == 0:
            print(f"made {step} steps", flush=True)
        dist.all_reduce(total)
        total /= dist.get_world_size()
        time.sleep(0.05)
    return total


def depart(steps, way):
    for turn in itertools.count(1):
        train(steps)
        evaluate(way if turn == DEPARTS_AT else "")
        save()


dist.init_process_group("gloo")
hc.checkpoint("Ranks have met")
train(int(sys.argv[1]))
if len(sys.argv) > 2:
    named = dist.get_rank() == int(sys.argv[2])
    if len(sys.argv) > 3:
        depart(int(sys.argv[1]), sys.argv[3] if named else "")
    elif named:
        stand_still()
    train(1)
dist.destroy_process_group()
