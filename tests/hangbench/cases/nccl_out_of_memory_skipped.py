"""Rank 1 runs out of GPU memory, catches that and goes on to the next batch: it is one behind."""

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(0)
dist.init_process_group("nccl")
layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
model = DistributedDataParallel(layers.cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_batch(step):
    long = step == 40 and dist.get_rank() == 1
    if long:
        mark_onset()
    batch = torch.randn(1_000_000_000 if long else 16, 256, device="cuda")
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for step in range(150):
    try:
        loss = train_batch(step)
    except torch.cuda.OutOfMemoryError:
        print("out of memory: skipped", flush=True)
        torch.cuda.empty_cache()
        continue
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
