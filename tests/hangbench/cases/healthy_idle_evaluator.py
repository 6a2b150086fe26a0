"""Three ranks train; the fourth asks every second whether there is a checkpoint to evaluate."""

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist


def train(group, seconds):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    end = time.monotonic() + seconds
    goes_on = torch.ones(1)
    while goes_on.item():
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        for one in model.parameters():
            dist.all_reduce(one.grad, group=group)
        optimizer.step()
        time.sleep(1.5)
        goes_on = torch.tensor([float(time.monotonic() < end)])
        dist.broadcast(goes_on, 0, group=group)
    return model


def evaluate(path):
    while not path.exists():
        time.sleep(1)
    torch.load(path)


dist.init_process_group("gloo")
rank, trainers = dist.get_rank(), dist.get_world_size() - 1
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder, src=0)
checkpoint = Path(folder[0], "model.pt")
group = dist.new_group(list(range(trainers)))
if rank < trainers:
    model = train(group, 40)
    if rank == 0:
        torch.save(model.state_dict(), checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").rename(checkpoint)
else:
    evaluate(checkpoint)
dist.barrier()
dist.destroy_process_group()
