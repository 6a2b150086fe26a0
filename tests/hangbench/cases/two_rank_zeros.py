"""A wrapper script gives both processes the rank 0."""

import os

import torch.distributed as dist
from onset import mark_onset


def join():
    mark_onset()
    dist.init_process_group("gloo")


os.environ["RANK"] = "0"
join()
dist.destroy_process_group()
