"""The script spawns its ranks itself; rank 1 waits for a shard that never comes."""

import os
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from onset import mark_onset


def wait_for_shard():
    mark_onset()
    threading.Event().wait()


def train(rank, meeting_file):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", f"file://{meeting_file}", rank=rank, world_size=2)
    for step in range(40):
        if rank == 1 and step == 20:
            wait_for_shard()
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    meeting_file = Path(tempfile.mkdtemp()) / "meeting"
    torch.multiprocessing.spawn(train, (meeting_file,), nprocs=2)
