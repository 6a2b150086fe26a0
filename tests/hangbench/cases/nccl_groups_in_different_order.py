"""Two groups of the same ranks; on rank 1 they are used in the other order once."""

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist
from onset import mark_onset

torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
data, tensor = dist.new_group([0, 1]), dist.new_group([0, 1])


def reduce_gradients(step):
    swapped = step == 30 and dist.get_rank() == 1
    if swapped:
        mark_onset()
    first, second = (tensor, data) if swapped else (data, tensor)
    large, small = torch.ones(100_000, device="cuda"), torch.ones(50_000, device="cuda")
    dist.all_reduce(large, group=first)
    dist.all_reduce(small, group=second)
    return large.sum() + small.sum()


for step in range(60):
    total = reduce_gradients(step)
    if step % 5 == 4:
        print(step, total.item(), flush=True)
