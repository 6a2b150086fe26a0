"""Helpers of rank 1 meet the others in groups of their own, after a child or word by a timer."""

import queue
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
beside, last = dist.new_group([0, 1]), dist.new_group([0, 1])
jobs = queue.Queue()


def meet():
    dist.all_reduce(torch.ones(4), group=beside)


def publish():
    subprocess.run([sys.executable, "-c", "import time; time.sleep(15)"], check=True)
    meet()


def publish_when_told():
    jobs.get()
    meet()


for _ in range(20):
    dist.all_reduce(torch.ones(4))
for helper in (publish, publish_when_told):
    if rank == 0:
        meet()
        dist.barrier(group=last)
        continue
    if helper is publish_when_told:
        threading.Timer(15, jobs.put, (1,)).start()
    thread = threading.Thread(target=helper)
    thread.start()
    dist.barrier(group=last)
    thread.join()
dist.destroy_process_group()
