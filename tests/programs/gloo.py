"""A process group of gloo that is gone when it is left, its threads with it.

A thread of gloo that frees a tensor while the interpreter is torn down aborts the rank
(https://github.com/pytorch/pytorch/pull/179291), and a group lives for as long as anybody holds it:
a model of DDP, or the default arguments of a module that is imported after the group was made.
"""

import gc
from pathlib import Path

import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 - it would keep the group by default arguments


def join(**options):
    dist.init_process_group("gloo", **options)


def leave():
    """Leave the group, if there is one; whoever calls it holds no model of DDP any more."""
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
    threads = [(one / "comm").read_text().strip() for one in Path("/proc/self/task").iterdir()]
    left = [name for name in threads if "gloo" in name]
    if left:
        raise RuntimeError(f"somebody still holds the process group: {left}")
