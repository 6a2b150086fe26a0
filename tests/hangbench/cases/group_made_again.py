"""A search makes its process group anew for each trial; in the second one rank 1's loss is no
number, so that it leaves out an evaluation of all."""

import math

import torch
import torch.distributed as dist
from onset import mark_onset

STEPS = (205, 400)
BROKEN_AT = 79


def loss_of(trial, step):
    if trial == 1 and step == BROKEN_AT and dist.get_rank() == 1:
        return math.nan
    return 1 / (step + 1)


def evaluate(weights, loss):
    if not math.isfinite(loss):
        mark_onset()
        return
    found = [torch.zeros(8) for _ in range(dist.get_world_size())]
    dist.all_gather(found, weights)


def run_trial(trial, steps):
    dist.init_process_group("gloo")
    weights = torch.ones(8)
    for step in range(steps):
        dist.all_reduce(weights)
        weights /= dist.get_world_size()
        if step % 10 == 9:
            evaluate(weights, loss_of(trial, step))
    dist.barrier()
    dist.destroy_process_group()


for trial, steps in enumerate(STEPS):
    run_trial(trial, steps)
