"""Rank 1 raises; torchrun then ends rank 0, which fails as well."""

import torch.distributed as dist
from onset import mark_onset


def read_sample():
    mark_onset()
    raise ValueError("bad sample 17")


dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    read_sample()
dist.barrier()
