"""Agents in a tracked loop without Lightning; on rank 1 the 20th observation never comes."""

import threading
import time

import torch
import torch.distributed as dist
from onset import mark_onset

import lightning_hangcheck as hc


def get_observation(episode):
    if dist.get_rank() == 1 and episode == 19:
        mark_onset()
        threading.Event().wait()
    time.sleep(0.05)
    return torch.ones(4)


dist.init_process_group("gloo")
for episode in hc.track(range(1000), "simulation"):
    with hc.step("get observation"):
        observation = get_observation(episode)
    hc.step("share reward")
    dist.all_reduce(observation)
