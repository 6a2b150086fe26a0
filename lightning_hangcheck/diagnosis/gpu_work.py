"""Does a rank's GPU work for it? What is idle on the CPU but waits for a busy GPU is not idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.model.evidence import GpuState, ProcessLook

BUSY_PERCENT = 5
"""A GPU without work shows 0, one that draws somebody's screen up to 3."""
NEARLY_FULL = 0.95
GIB = 1 << 30
NEWEST = 3


def gpu_works(look: ProcessLook) -> bool:
    """Whether a GPU worked for the process in one of the newest samples.

    Where the driver does not tell processes apart, any work on a GPU that it uses counts.
    """
    return any(_works(gpu) for sample in look.samples[-NEWEST:] for gpu in sample.gpus)


def describe_gpus(look: ProcessLook) -> Iterator[str]:
    """Describe the GPUs of the newest sample that shows any, one sentence each."""
    newest: Sequence[GpuState] = next(
        (sample.gpus for sample in reversed(look.samples) if sample.gpus), ()
    )
    return (", ".join(_facts(gpu)) for gpu in newest)


def _works(gpu: GpuState) -> bool:
    own = gpu.own_busy_percent if gpu.own_busy_percent is not None else gpu.busy_percent
    return own is not None and own >= BUSY_PERCENT


def _facts(gpu: GpuState) -> Iterator[str]:
    name = f"GPU {gpu.index}"
    if gpu.busy_percent is None:
        yield f"{name}: how busy it is, is not told"
    else:
        yield f"{name}: {gpu.busy_percent} % busy"
    if gpu.own_busy_percent is not None:
        yield f"{gpu.own_busy_percent} % with this process"
    if gpu.memory_used_bytes is not None and gpu.memory_bytes:
        full = gpu.memory_used_bytes >= NEARLY_FULL * gpu.memory_bytes
        used, all_of_it = gpu.memory_used_bytes / GIB, gpu.memory_bytes / GIB
        yield f"{used:.0f} of {all_of_it:.0f} GiB in use" + (", nearly full" if full else "")
    if gpu.clock_mhz is not None and gpu.full_clock_mhz is not None:
        yield f"{gpu.clock_mhz} of {gpu.full_clock_mhz} MHz"
    if gpu.power_w is not None:
        yield f"{gpu.power_w:.0f} W"
    if gpu.slowed_by:
        yield f"slowed down ({', '.join(gpu.slowed_by)})"
    if gpu.uncorrected_errors:
        yield f"{gpu.uncorrected_errors} uncorrected memory errors"
