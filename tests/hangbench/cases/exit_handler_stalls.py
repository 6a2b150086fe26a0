"""Rank 1 leaves, and its exit handler waits for a dead writer; rank 0 waits in a barrier."""

import atexit
import sys
import threading

import torch.distributed as dist
from onset import mark_onset


def flush_results():
    mark_onset()
    threading.Event().wait()


dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    atexit.register(flush_results)
    sys.exit(0)
dist.barrier()
