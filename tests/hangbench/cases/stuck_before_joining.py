"""Rank 1 waits for its scratch disk before it joins; rank 0 waits for it in the rendezvous."""

import os
import threading

import torch.distributed as dist
from onset import mark_onset


def wait_for_scratch_disk():
    mark_onset()
    threading.Event().wait()


if os.environ["RANK"] == "1":
    wait_for_scratch_disk()
dist.init_process_group("gloo")
dist.destroy_process_group()
