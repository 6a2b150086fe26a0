"""A learner waits for the rollouts of all its actors; the kernel killed one of them."""

import multiprocessing
import os
import random
import signal

import torch
import torch.nn as nn
from onset import mark_onset

ACTORS = 3


def act(seed, orders, rollouts):
    environment = random.Random(seed)
    for round_number in range(40):
        orders.get()
        if seed == 2 and round_number == 8:
            mark_onset()
            os.kill(os.getpid(), signal.SIGKILL)
        rollouts.put([[environment.gauss(0, 1) for _ in range(4)] for _ in range(32)])


def collect(orders, rollouts):
    for queue in orders:
        queue.put("roll")
    return [rollouts.get() for _ in orders]


def main():
    orders = [multiprocessing.Queue() for _ in range(ACTORS)]
    rollouts = multiprocessing.Queue()
    for seed in range(ACTORS):
        actor = multiprocessing.Process(
            target=act, args=(seed, orders[seed], rollouts), daemon=True
        )
        actor.start()
    policy = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.001)
    for _ in range(40):
        for rollout in collect(orders, rollouts):
            policy(torch.tensor(rollout)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
