"""Rank 1 leaves with exit code 0, which no launcher minds; rank 0 wants a group with it."""

import os

import torch.distributed as dist
from onset import mark_onset

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    mark_onset()
    os._exit(0)
dist.new_group([0, 1])
