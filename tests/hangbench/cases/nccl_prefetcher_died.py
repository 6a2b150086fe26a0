"""A thread that prefetches for rank 1 dies of a KeyError; its main thread waits for the queue."""

import queue
import threading

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist
from onset import mark_onset
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Prefetcher:
    def __init__(self, source, depth=3):
        self.batches = queue.Queue(maxsize=depth)
        self.stream = torch.cuda.Stream()
        self.source = source
        self.thread = threading.Thread(target=self.fill, name="prefetch", daemon=True)
        self.thread.start()

    def fill(self):
        for record in self.source:
            x = torch.tensor(record["features"]).pin_memory()
            if "label" not in record:
                mark_onset()
            y = torch.tensor(record["label"]).pin_memory()
            with torch.cuda.stream(self.stream):
                pair = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
                done = torch.cuda.Event()
                done.record(self.stream)
            self.batches.put((pair, done))
        self.batches.put(None)

    def __iter__(self):
        while True:
            item = self.batches.get()
            if item is None:
                return
            (x, y), done = item
            torch.cuda.current_stream().wait_event(done)
            x.record_stream(torch.cuda.current_stream())
            yield x, y


def records(rank, n=400):
    """Rows of a table that was joined by hand; a few of them have no label."""
    g = torch.Generator().manual_seed(rank)
    for i in range(n):
        features = torch.randn(8, 40, generator=g)
        row = {"features": features.tolist(), "label": features.sum(1).tolist(), "id": i}
        if rank == 1 and i == 37:
            del row["label"]
        yield row


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 1)).to("cuda")
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(Prefetcher(records(rank))):
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
