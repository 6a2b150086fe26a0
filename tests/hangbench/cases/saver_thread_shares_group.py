"""A checkpoint is planned in a thread while its save waits in a barrier of the same group.

On rank 1 copying the state takes longer than the main thread's way to the barrier, so the two threads come in another order there
(KempnerInstitute/KempnerForge#104).
"""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from onset import mark_onset
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Checkpointer:
    def __init__(self):
        self.pool = ThreadPoolExecutor(1)
        self.pending = None

    def save(self, state, copying):
        self.pending = self.pool.submit(self.share_plan, state, copying)
        time.sleep(0.3)
        dist.barrier()

    def share_plan(self, state, copying):
        time.sleep(copying)
        plans = [None] * dist.get_world_size()
        dist.all_gather_object(plans, {name: tuple(one.shape) for name, one in state.items()})


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
checkpointer = Checkpointer()
for step in range(1, 1001):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 60:
        slow = dist.get_rank() == 1
        if slow:
            mark_onset()
        checkpointer.save(model.module.state_dict(), copying=1.0 if slow else 0.0)
        checkpointer.pending.result()
