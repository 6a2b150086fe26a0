"""A thread exchanges gradients for DDP's hook; on rank 1 it dies, and backward waits for it."""

import queue
import threading

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel


class HalfPrecision:
    def __init__(self):
        self.buckets = queue.Queue()
        threading.Thread(target=self.exchange, name="half-precision", daemon=True).start()

    def exchange(self):
        while True:
            gradients, future = self.buckets.get()
            half = (gradients / dist.get_world_size()).half()
            if half.isinf().any():
                mark_onset()
                raise OverflowError("a gradient does not fit 16 bits")
            dist.all_reduce(half)
            future.set_result(half.float())


def in_half_precision(state, bucket):
    future = torch.futures.Future()
    state.buckets.put((bucket.buffer(), future))
    return future


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    model.register_comm_hook(HalfPrecision(), in_half_precision)
    for step in range(60):
        inputs = torch.randn(4, 8)
        if step == 40 and dist.get_rank() == 1:
            inputs *= 1e6
        model(inputs).pow(2).mean().backward()
        model.zero_grad()
    dist.destroy_process_group()


main()
