"""Makes a group and posts messages; torch's fake backend answers for the other rank."""

import time

import torch
import torch.distributed as dist
from announcing import announce
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
group = dist.new_group([1, 0])
for _ in range(3):
    received = dist.irecv(torch.empty(4), 1)
    dist.send(torch.ones(4), 1)
    received.wait()
operations = [
    dist.P2POp(dist.irecv, torch.empty(4), group=group, group_peer=1),
    dist.P2POp(dist.isend, torch.ones(4), group=group, group_peer=1),
]
for work in dist.batch_isend_irecv(operations):
    work.wait()
announce("sent")
time.sleep(60)
