"""Starts torch's worker server through our adapter and makes collectives; its own only peer."""

import sys
import time
from pathlib import Path

import gloo
import torch
import torch.distributed as dist
from announcing import announce

from lightning_hangcheck.hooks.being_watched import bindings_are_there, start_worker_server

path, count = Path(sys.argv[1]), int(sys.argv[2])
assert bindings_are_there()
started = start_worker_server(path)
gloo.join(store=dist.HashStore(), rank=0, world_size=1)
for _ in range(count):
    dist.all_reduce(torch.ones(4, 2))
announce("started" if started else "refused")
time.sleep(1000)
