"""Rank 0 alone gathers the weights of a sharded model, to save them."""

import io

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save_checkpoint(model):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    torch.save(get_model_state_dict(model, options=options), io.BytesIO())


def train_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()


dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
model = fully_shard(torch.nn.Linear(8, 8), mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(20):
    train_step(model, optimizer)
if dist.get_rank() == 0:
    mark_onset()
    save_checkpoint(model)
dist.barrier()
dist.destroy_process_group()
