"""The machine that a plan is for: as given, else as found here."""

from __future__ import annotations

import os

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.look.gpu import gpu_memory
from lightning_hangcheck.look.kernel import memory_use
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.planning.plan import GB, Machine

CPU_SHARE = 0.9
"""Of the main memory that is free: transformers takes as much for itself (get_max_memory)."""
EXAMPLE = "for example --gpus 2 --gpu-memory 80, or --gpus 0 for none"


def find_machine(
    gpus: int | None = None, gpu_gb: float | None = None, cpu_gb: float | None = None
) -> Machine:
    """Return the machine that is meant.

    Args:
        gpus: Number of GPUs; None for those of this machine.
        gpu_gb: GB of each; None for what they have here.
        cpu_gb: GB of main memory for weights; None for 90 % of what is free here.

    Raises:
        BadUsage: Something was not given and cannot be found here.
    """
    if gpus == 0:
        memory: tuple[int, ...] = ()
    elif gpus is not None and gpu_gb is not None:
        memory = (int(gpu_gb * GB),) * gpus
    else:
        memory = _as_found(gpus, gpu_gb)
    cpu = _free_memory() if cpu_gb is None else int(cpu_gb * GB)
    given = gpus is not None and cpu_gb is not None
    return Machine(gpus=memory, cpu=cpu, source="given" if given else "found here")


def _as_found(gpus: int | None, gpu_gb: float | None) -> tuple[int, ...]:
    """The GPUs of this machine, with what was given in place of what they have."""
    found = gpu_memory()
    if isinstance(found, Gap) or not found:
        why = f" ({found.reason})" if isinstance(found, Gap) else ""
        raise BadUsage(f"no GPU was found here{why}", f"say what the job will have, {EXAMPLE}")
    if gpus is not None and gpus > len(found):
        raise BadUsage(
            f"--gpus {gpus} without --gpu-memory, and this machine has only {len(found)}",
            f"say both, {EXAMPLE}",
        )
    chosen = found[:gpus]
    return chosen if gpu_gb is None else (int(gpu_gb * GB),) * len(chosen)


def _free_memory() -> int:
    use = memory_use(os.getpid())
    if use is None:
        raise BadUsage(
            "the main memory of this machine cannot be read", "say it, for example --cpu-memory 64"
        )
    return int((use.limit_bytes - use.used_bytes) * CPU_SHARE)
