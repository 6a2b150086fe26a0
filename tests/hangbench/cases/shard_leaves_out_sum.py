"""In a mesh of two by two, rank 2 leaves out one sum over its pair; all others wait in the end."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.distributed.device_mesh import init_device_mesh


def block(hidden, pair, *, empty):
    hidden = hidden * 0.5
    if empty:
        mark_onset()
        return hidden
    dist.all_reduce(hidden, group=pair)
    return hidden


def train(mesh, steps):
    pair, replicas = mesh["tensor"].get_group(), mesh["data"].get_group()
    for step in range(steps):
        hidden = torch.ones(8)
        for layer in range(3):
            odd = dist.get_rank() == 2 and (step, layer) == (30, 1)
            hidden = block(hidden, pair, empty=odd)
        dist.all_reduce(hidden, group=replicas)


def main():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    train(mesh, 60)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
