"""Rank 0 takes its own lock twice, rank 1 locks its own file twice; rank 2 waits for both."""

import fcntl
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from onset import mark_onset

cache = threading.Lock()


def update_cache(again):
    with cache:
        if again:
            mark_onset()
            update_cache(again=False)


def update_index(path, again):
    with path.open("a") as index:
        if not again:
            mark_onset()
        fcntl.flock(index, fcntl.LOCK_EX)
        if again:
            update_index(path, again=False)


def main():
    dist.init_process_group("gloo")
    for step in range(60):
        dist.all_reduce(torch.ones(4))
        if step == 30 and dist.get_rank() == 0:
            update_cache(again=True)
        if step == 30 and dist.get_rank() == 1:
            update_index(Path(tempfile.mkdtemp()) / "index", again=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
