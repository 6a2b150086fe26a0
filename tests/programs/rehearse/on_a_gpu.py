"""Puts all it has on a GPU, in the ways in which programs do; prints where it landed."""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

torch.cuda.set_device(0)
dist.init_process_group(
    "nccl",
    init_method=f"file://{sys.argv[1]}",
    rank=0,
    world_size=1,
    device_id=torch.device("cuda:0"),
)
device = torch.device("cuda", 0)
model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
model = DistributedDataParallel(model.to(device), device_ids=[0])
tensors = [
    torch.zeros(2).cuda(),
    torch.zeros(2).to("cuda:0", non_blocking=True),
    torch.zeros(2).to(0),
    torch.ones(2, device="cuda"),
    torch.tensor([1.0], device=0),
    next(nn.Linear(2, 2).cuda().parameters()),
    next(model.parameters()),
]
length = len(DataLoader(range(1000), batch_size=10))
passes = [len(list(DataLoader(range(1000), batch_size=10))) for _ in range(3)]
found = {
    "devices": sorted({str(one.device) for one in tensors}),
    "backend": dist.get_backend(),
    "length": length,
    "passes": passes,
}
torch.cuda.synchronize()
dist.destroy_process_group()
print(json.dumps(found))
