"""Rank 0 keeps a transaction of the sample index open over a barrier; rank 1 must read it first."""

import sqlite3
import tempfile
from pathlib import Path

import torch.distributed as dist
from onset import mark_onset


def share_path():
    path = [str(Path(tempfile.mkdtemp()) / "index.sqlite")]
    dist.broadcast_object_list(path, src=0)
    return path[0]


def open_index(path):
    return sqlite3.connect(path, timeout=100_000, isolation_level=None)


def read_index(index):
    mark_onset()
    return index.execute("SELECT count(*) FROM samples").fetchone()


def update_index(index):
    index.execute("CREATE TABLE samples (name TEXT)")
    index.execute("BEGIN EXCLUSIVE")
    dist.barrier()
    dist.barrier()
    index.execute("COMMIT")


dist.init_process_group("gloo")
index = open_index(share_path())
if dist.get_rank() == 0:
    update_index(index)
else:
    dist.barrier()
    read_index(index)
    dist.barrier()
dist.destroy_process_group()
