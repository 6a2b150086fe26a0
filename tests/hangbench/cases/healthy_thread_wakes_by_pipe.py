"""A thread asks each second for a marker that another program brings, and wakes the rank by a pipe."""

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Mailbox:
    def __init__(self, marker):
        self.marker = marker
        self.reader, self.writer = os.pipe()
        threading.Thread(target=self.poll, daemon=True).start()

    def poll(self):
        while not self.marker.exists():
            time.sleep(1)
        os.write(self.writer, b"!")

    def wait(self):
        return os.read(self.reader, 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        if step == 20 and rank == 0:
            marker = Path(tempfile.mkdtemp()) / "labels.ready"
            subprocess.Popen(
                ["setsid", "sh", "-c", f"sleep 15; touch {marker}"], start_new_session=True
            )
            Mailbox(marker).wait()
        loss = model(torch.randn(16, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


main()
