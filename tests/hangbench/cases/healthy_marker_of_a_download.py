"""Rank 0 downloads for 50 s beside a marker with its process id; the others wait until it goes."""

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

PATH = Path(os.environ.get("TMPDIR", "/tmp")) / f"weights-{os.getppid()}.lock"


def download():
    for _ in range(200):
        with (PATH.parent / f"{PATH.stem}.part").open("ab") as part:
            part.write(os.urandom(64 * 1024))
        time.sleep(0.25)


def wait_for_download():
    while PATH.exists():
        time.sleep(0.5)


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    PATH.write_text(str(os.getpid()))
dist.barrier()
if dist.get_rank() == 0:
    download()
    PATH.unlink()
    (PATH.parent / f"{PATH.stem}.part").unlink()
else:
    wait_for_download()
dist.barrier()
dist.destroy_process_group()
sys.stdout.write(f"rank {os.environ['RANK']} done\n")
