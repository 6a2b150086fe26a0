"""A regular expression backtracks without end on one of rank 1's texts."""

import re

import torch
import torch.distributed as dist
from onset import mark_onset


def strip_markup(text):
    mark_onset()
    return re.match(r"(<?a+>?)+$", text)


dist.init_process_group("gloo")
for step in range(40):
    if dist.get_rank() == 1 and step == 20:
        strip_markup("a" * 200 + "!")
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
