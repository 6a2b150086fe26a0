"""A thread of each rank meets the others after a save, in a group of its own, while both train on.

Both use the GPU's default stream. On rank 0 the barrier is queued before a gradient, on rank 1,
whose disk is slower, behind it: each GPU waits for the other's.
"""

import threading
import time

import one_gpu
import torch
import torch.distributed as dist
from onset import mark_onset

torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
savers = dist.new_group([0, 1])
dist.barrier(savers)


def save_in_background():
    time.sleep(4 if one_gpu.rank == "1" else 0)  # writes
    dist.barrier(savers)


def log_samples():
    if one_gpu.rank == "0":
        time.sleep(2)


def reduce_gradient(step):
    gradient = torch.full((1000,), float(step), device="cuda")
    dist.all_reduce(gradient)
    return gradient.mean()


for step in range(200):
    if step == 30:
        saving = threading.Thread(target=save_in_background)
        saving.start()
        log_samples()
        mark_onset()
    loss = reduce_gradient(step)
    if step % 5 == 0:
        print(step, loss.item(), flush=True)
saving.join()
dist.destroy_process_group()
