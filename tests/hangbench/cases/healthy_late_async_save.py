"""Ranks save beside training, in a thread and a group of their own; rank 1's storage is slow at the end."""

import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
saving = dist.new_group([0, 1], backend="gloo")


def save():
    if rank == 1:
        time.sleep(20)
    dist.all_reduce(torch.ones(1), group=saving)


for _ in range(40):
    dist.all_reduce(torch.ones(4))
saver = threading.Thread(target=save)
saver.start()
if rank == 0:
    saver.join()
dist.barrier()
saver.join()
dist.destroy_process_group()
