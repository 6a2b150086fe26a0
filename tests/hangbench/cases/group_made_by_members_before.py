"""A tensor-parallel group is made by its members alone, so the next group has two numbers."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    model = DistributedDataParallel(nn.Linear(16, 16))
    mark_onset()
    if rank < half:
        tensor_parallel = dist.new_group(list(range(half)))
        dist.all_reduce(torch.ones(1), group=tensor_parallel)
    metrics = dist.new_group(backend="gloo")
    for _ in range(20):
        model(torch.randn(8, 16)).mean().backward()
        dist.all_reduce(torch.ones(1), group=metrics)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
