"""Small DDP jobs: what parts the ranks in one scene, and (robust_*) what no scene parts.

Argument: the function's name. Each says what it does; one that hangs, also how it is mended.
"""

import itertools
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from parts import agreed, even, job, loss_of, samples, share, step
from torch.utils.data import DataLoader, IterableDataset

stopping = False


def stop(*_):
    global stopping
    stopping = True


def collate(batch):
    batch = [sample for sample in batch if sample is not None]
    return torch.utils.data.default_collate(batch) if batch else None


class Stream(IterableDataset):
    """Of so many samples, or without end; another one for each rank."""

    def __init__(self, *number):
        self.number = number

    def __iter__(self):
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in itertools.repeat(None, *self.number):
            yield torch.randn(8, generator=generator), torch.tensor(1)


def losses(validation):
    """The sum of the losses of this rank's share, and their number."""
    total = torch.zeros(2)
    with torch.no_grad():
        for x, y in validation:
            total += torch.tensor([loss_of(model.module(x), y).item(), 1.0])
    return total


def uneven_shards():
    """Each rank takes every nth sample itself, so one may have a batch more.

    Mended by a DistributedSampler, or by model.join().
    """
    for _ in range(3):
        for batch in share(samples()):
            step(model, optimizer, batch)


def validates_where_samples_are():
    """Averages the validation loss over ranks, but only where there are validation samples.

    Mended by leaving the condition out: a rank without samples adds zeros.
    """
    training, validation = even(samples()), share(samples(64))
    for _ in range(2):
        for batch in training:
            step(model, optimizer, batch)
        total = losses(validation)
        if total[1] > 0:
            dist.all_reduce(total)
            print("validation loss", float(total[0] / total[1]))


def counts_full_batches():
    """Reduces statistics of full batches only; the last batch may be full on one rank alone.

    Mended by reducing at every batch, or by drop_last=True.
    """
    for _ in range(2):
        for batch in share(samples()):
            loss = step(model, optimizer, batch)
            if len(batch[0]) == 8:
                mean = loss.detach().clone()
                dist.all_reduce(mean)
    dist.barrier()


def skips_none():
    """Leaves out a batch of which no file could be read, without asking the other ranks.

    Mended by drawing another sample in the dataset.
    """
    for _ in range(2):
        for batch in even(samples(), collate_fn=collate):
            if batch is not None:
                step(model, optimizer, batch)


def skips_nan():
    """Leaves out a batch whose loss is not finite, without asking the other ranks.

    Mended by reducing the flag over all ranks before the `continue`.
    """
    for _ in range(2):
        for x, y in even(samples()):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            if not torch.isfinite(loss):
                print("loss is not finite, batch left out")
                continue
            loss.backward()
            optimizer.step()


def save_fails_before_barrier():
    """Goes on where a save of rank 0 fails, and leaves out the barrier behind it.

    Mended by a `finally` around the barrier.
    """
    folder = tempfile.mkdtemp()
    for epoch in range(2):
        for batch in even(samples()):
            step(model, optimizer, batch)
        try:
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), f"{folder}/{epoch}.pt")
            dist.barrier()
        except OSError as error:
            print("not saved:", error)


def looks_for_saved():
    """Broadcasts what was saved where the file is there, which a slow save decides.

    Mended by a barrier behind the save.
    """
    saved = Path(f"rehearsed-{os.environ['MASTER_PORT']}.pt")
    for batch in even(samples()):
        step(model, optimizer, batch)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), saved)
    else:
        time.sleep(2)  # computes metrics meanwhile
    if saved.exists():
        dist.broadcast(torch.ones(1), src=0)
    dist.barrier()
    saved.unlink(missing_ok=True)


def own_patience():
    """Stops early on the validation loss of its own share, which each rank decides for itself.

    Mended by reducing the loss over all ranks first.
    """
    training, validation = even(samples()), even(samples(64))
    best, patience = float("inf"), 3
    for _ in range(12):
        for batch in training:
            step(model, optimizer, batch)
        mean = (losses(validation)[0] / len(validation)).item()
        best, patience = (mean, 3) if mean < best else (best, patience - 1)
        if patience == 0:
            break


def leaves_on_sigterm():
    """Stops at the next step once it got SIGTERM, and meets the others at a barrier to save.

    Mended by reducing the flag over all ranks in each step.
    """
    signal.signal(signal.SIGTERM, stop)
    for _ in range(3):
        for batch in even(samples()):
            if stopping:
                break
            step(model, optimizer, batch)
    dist.barrier()


def robust_plain():
    """As the tutorial has it: even shares, rank 0 evaluates and saves alone, then a barrier."""
    training, validation = even(samples()), even(samples(60))
    folder = tempfile.mkdtemp()
    for epoch in range(2):
        training.sampler.set_epoch(epoch)
        for batch in training:
            step(model, optimizer, batch)
        dist.all_reduce(losses(validation))
        if dist.get_rank() == 0:
            for _ in range(30):  # more often than any data that all ranks read
                losses(DataLoader(samples(32), batch_size=8))
            torch.save(model.state_dict(), f"{folder}/{epoch}.pt")
        dist.barrier()


def robust_join():
    """Shares that may be uneven, within model.join()."""
    for _ in range(2):
        with model.join():
            for batch in share(samples()):
                step(model, optimizer, batch)


def robust_agrees():
    """Skips batches, stops early and stops on SIGTERM, each only once all ranks know of it."""
    signal.signal(signal.SIGTERM, stop)
    training, validation = even(samples(), collate_fn=collate), even(samples(64))
    best, patience = float("inf"), 3
    for _ in range(8):
        for batch in training:
            if agreed(stopping or batch is None):
                if agreed(stopping):
                    break
                continue
            x, y = batch
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            if agreed(not torch.isfinite(loss)):
                continue
            loss.backward()
            optimizer.step()
        mean = losses(validation)[0] / len(validation)
        dist.all_reduce(mean)
        best, patience = (mean, 3) if mean < best else (best, patience - 1)
        if patience == 0 or agreed(stopping):
            break


def robust_save():
    """Tells all ranks whether the save of rank 0 went well, and ends on all where it did not."""
    folder = tempfile.mkdtemp()
    for epoch in range(2):
        for batch in even(samples()):
            step(model, optimizer, batch)
        failed = False
        if dist.get_rank() == 0:
            try:
                torch.save(model.state_dict(), f"{folder}/{epoch}.pt")
            except OSError:
                failed = True
        if agreed(failed):
            raise RuntimeError("not saved")


def robust_stream():
    """A stream for each rank, of which none goes on once one has ended."""
    for _ in range(2):
        batches = iter(DataLoader(Stream(128), batch_size=8))
        while not agreed((batch := next(batches, None)) is None):
            step(model, optimizer, batch)


def robust_endless():
    """A stream without end for each rank, and a number of steps that is the same on all."""
    for batch in itertools.islice(DataLoader(Stream(), batch_size=8), 20):
        step(model, optimizer, batch)


model, optimizer = job()
globals()[sys.argv[1]]()
dist.destroy_process_group()
