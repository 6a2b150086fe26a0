"""Rank 0 waits at a named barrier; rank 1 reads from a pipe that nobody writes to."""

import os

import torch.distributed as dist
from onset import mark_onset

import lightning_hangcheck as hc


def prepare_data():
    reader, _ = os.pipe()
    mark_onset()
    os.read(reader, 1)


dist.init_process_group("gloo")
if dist.get_rank() == 1:
    prepare_data()
hc.barrier("after data", timeout=120.0)
dist.destroy_process_group()
