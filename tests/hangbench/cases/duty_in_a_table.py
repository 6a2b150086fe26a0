"""What each rank does at the end of an epoch is in a table: rank 0's duty ends with a barrier."""

import torch
import torch.distributed as dist
from onset import mark_onset


def publish():
    print("published", flush=True)
    dist.barrier()


def rest():
    pass


def train(batches):
    for _ in range(batches):
        loss = model(torch.randn(4, 8)).sum()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
duties = {0: publish}
train(20)
mark_onset()
duties.get(dist.get_rank(), rest)()
train(20)
dist.destroy_process_group()
