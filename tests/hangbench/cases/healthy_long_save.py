"""Rank 0 writes a checkpoint for 15 s while rank 1 waits at the barrier."""

import os
import tempfile
import time

import torch.distributed as dist


def save():
    end = time.monotonic() + 15
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < end:
            file.seek(0)
            for _ in range(4):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    save()
dist.barrier()
dist.barrier()
dist.destroy_process_group()
