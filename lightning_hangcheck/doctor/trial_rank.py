"""One rank of a trial: rendezvous, collectives, and an exchange of data with each other rank.

The tested launcher runs it with the user's Python, so it imports only torch and the standard
library. It prints a line for each step begun and done. The reader has time limits; this has none.
"""

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations

import torch
import torch.distributed as dist

MARK = "hangcheck-trial: "
ELEMENTS = 1024
LARGE_BYTES = 4 * 2**20
MOST_PAIRED = 8
"""Pairs grow with the square of the ranks: 28 for 8 ranks, enough for one node."""
# Of srun, Open MPI and MPICH's process managers; torch's launchers set the first of each.
RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def main() -> None:
    """Join the process group, and try each backend that this machine has."""
    rank, world_size, local_rank = (
        next((int(os.environ[name]) for name in names if name in os.environ), 0)
        for names in (RANK, WORLD_SIZE, LOCAL_RANK)
    )
    say = partial(_say, rank)
    say("start", world_size=world_size, host=socket.gethostname())
    # srun does not set the address; choose it like Lightning's SLURMEnvironment, to test the same
    nodes = os.environ.get("SLURM_NODELIST", "127.0.0.1")
    nodes = re.sub(r"\[(.*?)(?:[,-].*)?\]", r"\1", nodes)
    os.environ.setdefault("MASTER_ADDR", nodes.split(" ")[0].split(",")[0])
    job = os.environ.get("SLURM_JOB_ID", "")[-4:]
    os.environ.setdefault("MASTER_PORT", str(int(job) + 15000 if job.isdecimal() else 12910))
    with _step(say, "rendezvous", "gloo"):
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    _try_backend(say, "gloo", torch.device("cpu"), None)
    if torch.cuda.is_available() and dist.is_nccl_available():
        if local_rank < torch.cuda.device_count():
            torch.cuda.set_device(local_rank)
            group = dist.new_group(backend="nccl")
            _try_backend(say, "nccl", torch.device("cuda", local_rank), group)
        else:
            say("no device")
    with _step(say, "leave", "gloo"):
        dist.destroy_process_group()
    say("end")


def _say(rank: int, did: str, **facts: object) -> None:
    """Print a message in one write, so that lines of several ranks never mix."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    line = MARK + json.dumps({"did": did, "rank": rank, "restarts": restarts, **facts})
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


@contextmanager
def _step(say: Callable[..., None], step: str, backend: str) -> Iterator[dict[str, object]]:
    """Report begin and, unless it fails, end of a step, with the facts collected."""
    say("begin", step=step, backend=backend)
    facts: dict[str, object] = {}
    yield facts
    say("done", step=step, backend=backend, **facts)


def _try_backend(
    say: Callable[..., None], backend: str, device: torch.device, group: "dist.ProcessGroup | None"
) -> None:
    rank, paired = dist.get_rank(), min(dist.get_world_size(), MOST_PAIRED)
    with _step(say, "barrier", backend):
        dist.barrier(group=group)
    with _step(say, "all_reduce", backend) as facts:
        numbers = torch.full((ELEMENTS,), float(rank + 1), device=device)
        dist.all_reduce(numbers, group=group)
        facts["sums"] = [float(numbers.min()), float(numbers.max())]
    data = torch.zeros(LARGE_BYTES // 4, device=device)
    for low, high in combinations(range(paired), 2):
        if rank in (low, high):
            with _step(say, f"pair {low}-{high}", backend):
                for sender in (low, high):
                    if rank == sender:
                        dist.send(data, low + high - rank, group=group)
                    else:
                        dist.recv(data, low + high - rank, group=group)
                if data.is_cuda:
                    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
