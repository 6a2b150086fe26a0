"""A checkpoint's barrier waits in a thread for the slower writer, while rank 0 computes."""

import threading
import time

import torch
import torch.distributed as dist


def compute(seconds):
    matrix = torch.randn(200, 200)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        matrix = (matrix @ matrix).tanh()


def write_shard(writers):
    if dist.get_rank() == 1:
        time.sleep(35)
    dist.barrier(group=writers)


dist.init_process_group("gloo")
writing = threading.Thread(target=write_shard, args=[dist.new_group([0, 1])])
dist.all_reduce(torch.ones(4))
writing.start()
if dist.get_rank() == 0:
    compute(30)
dist.all_reduce(torch.ones(4))
writing.join()
dist.destroy_process_group()
