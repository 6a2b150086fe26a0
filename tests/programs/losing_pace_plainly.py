"""The same in a plain loop: rank 1 is longer at its own work while a file is there."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

USUAL_S, SLOW_S = 0.02, 0.2
SLOW, ENOUGH = Path("slow"), Path("enough")
LONGEST = 100_000


def prepare(rank):
    """What this rank does by itself."""
    time.sleep(SLOW_S if rank == 1 and SLOW.exists() else USUAL_S)


dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(LONGEST):
    prepare(rank)
    loss = model(torch.ones(4)).sum()
    loss.backward()
    ends = torch.tensor(float(ENOUGH.exists()))
    for value in (*(parameter.grad for parameter in model.parameters()), ends):
        dist.all_reduce(value)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 50 == 0:
        os.write(1, (json.dumps({"event": "step", "step": step}) + "\n").encode())
    if ends:
        break
dist.destroy_process_group()
