"""What the programs of this folder have in common: a tiny job on two ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

loss_of = nn.functional.cross_entropy


def samples(number=256):
    torch.manual_seed(0)
    x = torch.randn(number, 8)
    return TensorDataset(x, (x.sum(1) > 0).long())


def share(data, **given):
    """A loader over every nth sample: nothing makes sure that all ranks have as many."""
    mine = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
    return DataLoader(mine, batch_size=8, **given)


def even(data, **given):
    """A loader that gives all ranks as many samples."""
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data), **given)


def job():
    """Join the group; return the wrapped model and its optimizer."""
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def agreed(flag):
    """Whether any rank says so."""
    told = torch.tensor(float(flag))
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return bool(told.item())
