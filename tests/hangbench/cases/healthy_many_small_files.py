"""Rank 0 unpacks and reads many small files for 12 s while the others wait."""

import tempfile
import time
from pathlib import Path

import torch.distributed as dist


def unpack(folder):
    end = time.monotonic() + 12
    number = 0
    while time.monotonic() < end:
        file = folder / f"{number % 5000}.txt"
        file.write_text("some text\n" * 100)
        file.read_text()
        number += 1


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
dist.barrier()
dist.destroy_process_group()
