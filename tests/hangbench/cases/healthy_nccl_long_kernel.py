"""The GPU of rank 1 computes for 40 s before a collective, once."""

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
for step in range(40):
    if step == 20 and dist.get_rank() == 1:
        for _ in range(40):
            torch.cuda._sleep(1_900_000_000)
    gradient = torch.ones(1000, device="cuda")
    dist.all_reduce(gradient)
    if step % 10 == 9:
        print(step, gradient.sum().item(), flush=True)
dist.destroy_process_group()
print("trained", flush=True)
