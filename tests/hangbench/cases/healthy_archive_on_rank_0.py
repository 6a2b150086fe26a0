"""Rank 0 packs and checks a data set with other programs for some 12 s; the others wait."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

import torch.distributed as dist


def pack(folder):
    (folder / "samples.bin").write_bytes(os.urandom(60_000_000))
    end = time.monotonic() + 12
    while time.monotonic() < end:
        subprocess.run(["tar", "-czf", "samples.tar.gz", "samples.bin"], cwd=folder, check=True)
        subprocess.run(["sha256sum", "samples.tar.gz"], cwd=folder, check=True)


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    with tempfile.TemporaryDirectory() as folder:
        pack(Path(folder))
dist.barrier()
dist.destroy_process_group()
