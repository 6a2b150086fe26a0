"""The script spawns its ranks itself."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist


def train(rank, meeting_file):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", f"file://{meeting_file}", rank=rank, world_size=2)
    for _ in range(100):
        dist.all_reduce(torch.ones(4))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    meeting_file = Path(tempfile.mkdtemp()) / "meeting"
    torch.multiprocessing.spawn(train, (meeting_file,), nprocs=2)
