"""Rank 1's helper polls for the marker of an upload, then does what was asked of it: it meets."""

import os
import subprocess
import threading
import time

import torch
import torch.distributed as dist

MARKER = f"uploaded {os.environ['MASTER_PORT']}"


class Watcher(threading.Thread):
    def __init__(self, tasks):
        super().__init__()
        self.tasks = tasks

    def run(self):
        while not os.path.exists(MARKER):
            time.sleep(1)
        for task in self.tasks:
            task()


dist.init_process_group("gloo")
saves = dist.new_group([0, 1])


def publish():
    dist.all_reduce(torch.ones(2), group=saves)


for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    publish()
else:
    subprocess.Popen(["sh", "-c", f"sleep 15; touch '{MARKER}'"], start_new_session=True)
    watcher = Watcher([publish])
    watcher.start()
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    watcher.join()
dist.destroy_process_group()
print("trained", flush=True)
