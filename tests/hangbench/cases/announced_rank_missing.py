"""The script asks for three ranks, as its configuration says, and the launcher started two."""

import os

import torch.distributed as dist
from onset import mark_onset


def join(world_size):
    os.environ["WORLD_SIZE"] = str(world_size)
    mark_onset()
    dist.init_process_group("gloo")


join(world_size=3)
dist.destroy_process_group()
