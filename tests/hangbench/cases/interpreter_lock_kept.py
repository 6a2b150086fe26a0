"""A call into native code on rank 1 sleeps for ever without giving the interpreter lock up."""

import ctypes

import torch
import torch.distributed as dist
from onset import mark_onset


def decode_video():
    mark_onset()
    ctypes.PyDLL(None).sleep(1_000_000)


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    decode_video()
dist.barrier()
dist.destroy_process_group()
