"""A rank waits for its timer, which writes the metrics late, beside a thread that waits for work."""

import queue
import threading

import torch
import torch.distributed as dist

requests = queue.Queue()


def prefetch():
    while True:
        requests.get()


dist.init_process_group("gloo")
threading.Thread(target=prefetch, daemon=True).start()
for step in range(40):
    dist.all_reduce(torch.ones(4))
    if step == 20 and dist.get_rank() == 1:
        writer = threading.Timer(18, print, ["metrics written"])
        writer.start()
        writer.join()
dist.destroy_process_group()
