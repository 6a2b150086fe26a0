"""The script of rank 1 fails on a bad row, but its uploading thread keeps the interpreter."""

import queue
import shutil
import threading
from pathlib import Path

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist
from onset import mark_onset
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Uploader:
    """Copies files to the archive behind the training's back."""

    def __init__(self, archive):
        self.archive = Path(archive)
        self.archive.mkdir(exist_ok=True)
        self.files = queue.Queue()
        self.thread = threading.Thread(target=self.work, name="uploader")
        self.thread.start()

    def work(self):
        while (path := self.files.get()) is not None:
            shutil.copy(path, self.archive / path.name)

    def submit(self, path):
        self.files.put(path)

    def close(self):
        self.files.put(None)
        self.thread.join()


def parse(row):
    if "n/a" in row:
        mark_onset()
    values = [float(part) for part in row.split(",")]
    return torch.tensor(values[:-1]), torch.tensor(values[-1:])


def read_rows(rank, n=300):
    g = torch.Generator().manual_seed(rank)
    for i in range(n):
        row = ",".join(f"{v:.3f}" for v in torch.randn(33, generator=g).tolist())
        yield row.replace(".", "", 1).replace("-", "n/a", 1) if rank == 1 and i == 32 else row


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 1)).to("cuda")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    uploader = Uploader(f"archive_{rank}")
    for step, row in enumerate(read_rows(rank)):
        x, y = parse(row)
        loss = (model(x.to("cuda")[None]) - y.to("cuda")).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            path = Path(f"rank{rank}_{step}.pt")
            torch.save(model.module.state_dict(), path)
            uploader.submit(path)
            print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
    uploader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
