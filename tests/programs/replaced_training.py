"""Ranks reduce together until told to hang; each says when it gets on, and in how large a world.

``replaced_training.py FOLDER``: FOLDER/HOST-RANK-WORLD appears with the tenth step; the rank of
which FOLDER/hang-RANK appears stands still in its own code.
"""

import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER, RANK, WORLD = Path(sys.argv[1]), os.environ["RANK"], os.environ["WORLD_SIZE"]


def stand_still():
    time.sleep(100_000)


def train():
    total, step = torch.ones(4), 0
    while True:
        if (FOLDER / f"hang-{RANK}").exists():
            stand_still()
        dist.all_reduce(total)
        total /= dist.get_world_size()
        step += 1
        if step == 10:
            (FOLDER / f"{socket.gethostname()}-{RANK}-{WORLD}").touch()
        time.sleep(0.05)


dist.init_process_group("gloo")
train()
