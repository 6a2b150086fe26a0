"""Rank 1 raises, but a thread that is no daemon keeps its process; rank 0 waits in a barrier."""

import threading

import torch.distributed as dist
from onset import mark_onset


def upload_for_ever():
    threading.Event().wait()


def read_sample():
    mark_onset()
    raise ValueError("bad sample 17")


dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    threading.Thread(target=upload_for_ever, name="uploader").start()
    read_sample()
dist.barrier()
dist.destroy_process_group()
