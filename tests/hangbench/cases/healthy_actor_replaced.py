"""A supervisor's thread finds an actor that was killed after a while, and starts another."""

import multiprocessing
import os
import signal
import threading
import time

import torch
import torch.nn as nn


def act(fails, rollouts):
    if fails:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(10):
        rollouts.put(torch.randn(8, 4).tolist())


def supervise(actor, rollouts):
    time.sleep(15)
    if not actor.is_alive():
        multiprocessing.Process(target=act, args=(False, rollouts), daemon=True).start()


def main():
    rollouts = multiprocessing.Queue()
    actor = multiprocessing.Process(target=act, args=(True, rollouts), daemon=True)
    actor.start()
    threading.Thread(target=supervise, args=(actor, rollouts), daemon=True).start()
    policy = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for _ in range(10):
        policy(torch.tensor(rollouts.get())).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained", flush=True)


if __name__ == "__main__":
    main()
