"""A lock file of a job that was killed elsewhere is still there; rank 0 waits for it to vanish."""

import tempfile
from pathlib import Path

import torch.distributed as dist
from filelock import SoftFileLock
from onset import mark_onset


def leave_lock_behind():
    path = Path(tempfile.mkdtemp()) / "tokenizer.lock"
    path.write_text("4711\nnode-that-is-gone\n")
    return path


def prepare_tokenizer(path):
    mark_onset()
    with SoftFileLock(path):
        pass


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    prepare_tokenizer(leave_lock_behind())
dist.barrier()
dist.destroy_process_group()
