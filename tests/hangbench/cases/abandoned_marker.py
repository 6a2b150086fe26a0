"""A worker that was killed left its marker file behind; a thread on rank 2 waits for it to go."""

import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from onset import mark_onset


def leave_marker_behind():
    path = os.path.join(tempfile.mkdtemp(), "shards.lock")
    killed = subprocess.Popen(["sleep", "1000"])
    with open(path, "w") as marker:
        marker.write(str(killed.pid))
    killed.kill()
    killed.wait()
    return path


def acquire_shards(path):
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            time.sleep(0.25)
        else:
            return


dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(1))
if dist.get_rank() == 2:
    lock = leave_marker_behind()
    mark_onset()
    with ThreadPoolExecutor(2) as executor:
        executor.submit(acquire_shards, lock).result()
dist.barrier()
dist.destroy_process_group()
