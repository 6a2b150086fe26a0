"""A tracked loop whose steps take from 0.05 to 8 s, on one rank or the other."""

import time

import torch
import torch.distributed as dist

import lightning_hangcheck as hc

COMPUTING = [0.05, 0.05, 1, 0.05, 8, 0.05, 0.1, 6, 0.05, 0.05]
WAITING = [0.05, 2, 0.05, 4, 0.05, 0.05, 3, 0.05, 1, 0.05]


def simulate(seconds):
    end = time.monotonic() + seconds
    weights = torch.ones(64, 64)
    while time.monotonic() < end:
        weights = torch.tanh(weights @ weights)


dist.init_process_group("gloo")
for number in hc.track(range(len(COMPUTING)), "simulation"):
    mine = number % 2 == dist.get_rank()
    with hc.step("simulate"):
        simulate(COMPUTING[number] if mine else 0.05)
    with hc.step("wait for the judge"):
        time.sleep(WAITING[number] if mine else 0.05)
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
