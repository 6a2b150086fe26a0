"""Rank 0 reads a large model from a slow local disk for 15 s, shard by shard."""

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist


def write_shards(folder):
    for number in range(30):
        torch.save({"weight": torch.ones(200, 200)}, folder / f"shard-{number}.pt")


def load_model(folder):
    weights = {}
    for shard in sorted(folder.glob("*.pt")):
        weights[shard.stem] = torch.load(shard)["weight"]
        time.sleep(0.5)
    return weights


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder))
        load_model(Path(folder))
dist.barrier()
dist.destroy_process_group()
