"""A spawned actor of rank 1 takes a lock that it has already, before it answers."""

import multiprocessing
import os
import threading

import torch
import torch.distributed as dist
from onset import mark_onset

LAST_GOOD = 3


class Actor:
    def __init__(self):
        self.lock = threading.Lock()

    def step(self, number):
        with self.lock:
            return self.render(number)

    def render(self, number):
        if number <= LAST_GOOD or os.environ["RANK"] == "0":
            return number
        with self.lock:
            return number


def act(connection):
    actor = Actor()
    for _ in range(20):
        connection.send(actor.step(connection.recv()))


def collect(connection, number):
    connection.send(number)
    return connection.recv()


def main():
    dist.init_process_group("gloo")
    ours, theirs = multiprocessing.Pipe()
    actor = multiprocessing.get_context("spawn").Process(target=act, args=(theirs,), daemon=True)
    actor.start()
    for number in range(20):
        if number > LAST_GOOD and dist.get_rank() == 1:
            mark_onset()
        collect(ours, number)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
