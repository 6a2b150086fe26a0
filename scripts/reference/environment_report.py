"""What the reference script says of its surroundings, on every rank."""

from __future__ import annotations

import os

from lightning_hangcheck.text.redaction import redact_values

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PREFIXES = ("CUDA_", "WANDB_", "NCCL_", "GLOO_", "TORCH", "HF_", "SLURM_", "HANGCHECK_")


def report_environment() -> None:
    """Print the variables that decide how a distributed run behaves, secrets redacted."""
    wanted = {
        name: value
        for name, value in os.environ.items()
        if name in NAMES or name.startswith(PREFIXES)
    }
    lines = [f"{name}={value}" for name, value in sorted(redact_values(wanted).items())]
    absent = [name for name in ("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES") if name not in wanted]
    _say("environment", [*lines, *(f"{name} is not set" for name in absent)])


def report_processes(moment: str) -> None:
    """Print the state of CUDA and of the process group; imports torch.

    Args:
        moment: When, for the heading.
    """
    _say(f"state {moment}", [_cuda_state(), _process_group_state()])


def _cuda_state() -> str:
    import torch

    if not torch.cuda.is_available():
        return "CUDA: not available"
    state = f"CUDA: {torch.cuda.device_count()} devices, initialized: {torch.cuda.is_initialized()}"
    if not torch.cuda.is_initialized():
        # asking for more would create a context, and a process with one cannot fork workers
        return state
    used = torch.cuda.memory_allocated() / 2**20
    return f"{state}, current device {torch.cuda.current_device()}, {used:.0f} MiB allocated"


def _process_group_state() -> str:
    from torch import distributed

    if not distributed.is_available():
        return "process group: torch is built without torch.distributed"
    if not distributed.is_initialized():
        return "process group: not initialized"
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    return f"process group: {distributed.get_backend()}, rank {rank} of {world_size}"


def _say(heading: str, lines: list[str]) -> None:
    """Print with one write(2), so that the reports of several ranks never mix."""
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    prefix = f"[rank {rank}][PID:{os.getpid()}] "
    text = "".join(f"{prefix}{heading}: {line}\n" for line in lines)
    os.write(2, text.encode(errors="replace"))
