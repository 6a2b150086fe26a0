"""Rank 0 alone reduces, beside threads of both ranks that report from time to time."""

import threading
import time

import torch
import torch.distributed as dist
from onset import mark_onset

dist.init_process_group("gloo")
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])


def report():
    while True:
        print("alive", flush=True)
        time.sleep(60)


def reduce_on_main():
    mark_onset()
    dist.all_reduce(torch.ones(4), group=first)


threading.Thread(target=report, daemon=True).start()
for _ in range(20):
    dist.all_reduce(torch.ones(4), group=second)
if dist.get_rank() == 0:
    reduce_on_main()
dist.barrier(group=second)
dist.destroy_process_group()
