"""Three actors wait for a simulator that has ended; the learner polls for their episodes."""

import os
import time

import torch.distributed as dist
from onset import mark_onset


def episode_of(actor, number):
    return f"episode {number} of {actor}"


def play(actor, number):
    if number == 3:
        mark_onset()
        with open("simulator") as simulator:
            simulator.readline()
    open(episode_of(actor, number), "w").close()


def collect(number):
    for actor in (1, 2, 3):
        while not os.path.exists(episode_of(actor, number)):
            time.sleep(0.5)


dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    os.mkfifo("simulator")
dist.barrier()
for number in range(6):
    if rank == 0:
        collect(number)
    else:
        play(rank, number)
dist.barrier()
dist.destroy_process_group()
