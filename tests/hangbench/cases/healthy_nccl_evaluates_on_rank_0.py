"""Rank 0 evaluates for 40 s with many kernels, twice; rank 1 waits in a barrier."""

import time

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))


def train():
    for _ in range(30):
        gradient = torch.ones(1000, device="cuda")
        dist.all_reduce(gradient)
    return gradient.sum().item()


def evaluate():
    end, matrix = time.monotonic() + 40, torch.randn(2048, 2048, device="cuda")
    while time.monotonic() < end:
        for _ in range(20):
            matrix = torch.nn.functional.normalize(matrix @ matrix)
        matrix.sum().item()


for _ in range(2):
    train()
    if dist.get_rank() == 0:
        evaluate()
    dist.barrier()
dist.destroy_process_group()
print("trained", flush=True)
