"""A kernel of rank 1 takes minutes; it asks for its result before the collective of the step."""

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist
from onset import mark_onset

torch.cuda.set_device(0)
dist.init_process_group("nccl")


def search(step):
    if step == 30 and dist.get_rank() == 1:
        mark_onset()
        for _ in range(300):
            torch.cuda._sleep(2_000_000_000)
    return torch.ones(1, device="cuda").item()


for step in range(60):
    search(step)
    gradient = torch.ones(1000, device="cuda")
    dist.all_reduce(gradient)
    if step % 10 == 9:
        print(step, gradient.sum().item(), flush=True)
