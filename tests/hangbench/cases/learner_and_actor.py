"""Rank 0 learns, rank 1 acts, each in its own loop; the actor leaves out its empty episode."""

import torch
import torch.distributed as dist
from onset import mark_onset

ROUNDS = 60


def exchange(own):
    found = [torch.zeros(4) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    return torch.stack(found)


def learn(weights):
    for _ in range(ROUNDS):
        dist.broadcast(weights, src=0)
        weights += exchange(torch.zeros(4)).sum()


def play(weights, number):
    return [] if number == 33 else [weights.mean()]


def act(weights):
    for number in range(ROUNDS):
        dist.broadcast(weights, src=0)
        episode = play(weights, number)
        if not episode:
            mark_onset()
            continue
        exchange(torch.full((4,), float(len(episode))))


def main():
    dist.init_process_group("gloo")
    weights = torch.zeros(8)
    if dist.get_rank() == 0:
        learn(weights)
    else:
        act(weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
