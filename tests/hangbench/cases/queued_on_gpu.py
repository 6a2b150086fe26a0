"""The same by NCCL, on a GPU that all ranks share. Import it before torch."""

import one_gpu  # noqa: F401 - sets the environment
import torch

BACKEND = "nccl"
DEVICE = torch.device("cuda", 0)
torch.cuda.set_device(DEVICE)


def loss():
    """A number that is known once all that was queued before it is done."""
    return torch.zeros(1, device=DEVICE).sum()


def side_stream():
    """For a thread whose operations the others' must not wait for: they share one stream else."""
    return torch.cuda.stream(torch.cuda.Stream())


def synchronize():
    torch.cuda.synchronize()


def work_long(seconds):
    """Queue a kernel that works for so long. The clock of a GPU does not go faster than 2 GHz."""
    for _ in range(round(seconds)):
        torch.cuda._sleep(2_000_000_000)
