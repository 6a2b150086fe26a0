"""A DataLoader worker of rank 1 reads a pipe to which nobody writes; DDP of rank 0 runs ahead."""

import os

import one_gpu
import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Shards(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        if index == 300 and one_gpu.rank == "1":
            return self.read_shard("shard")
        return torch.randn(64)

    def read_shard(self, path):
        os.mkfifo(path)
        mark_onset()
        with open(path, "rb") as shard:
            return torch.frombuffer(shard.read(256), dtype=torch.float32)


torch.cuda.set_device(0)
dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(64, 1).cuda(), device_ids=[0])
for step, batch in enumerate(DataLoader(Shards(), batch_size=4, num_workers=2, pin_memory=True)):
    loss = model(batch.cuda(non_blocking=True)).mean()
    loss.backward()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
