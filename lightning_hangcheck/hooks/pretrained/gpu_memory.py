"""Memory of the GPUs that a model is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.text.amounts import bytes_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import device
    from transformers import PreTrainedModel


class GpuMemory(msgspec.Struct, frozen=True):
    """One GPU at one moment, in bytes.

    Attributes:
        used: By all processes.
        by_us: By tensors of this process.
    """

    index: int
    used: int
    total: int
    by_us: int

    @property
    def share(self) -> float:
        """How much of it is used, 0 to 1."""
        return self.used / self.total


def gpu_memory(model: PreTrainedModel) -> tuple[GpuMemory, ...]:
    """Look at each GPU that holds a parameter of the model.

    No other GPU is asked: asking makes a context there, which takes some hundred megabytes.
    """
    return memory_of(parameter.device for parameter in model.parameters())


def memory_of(devices: Iterable[device]) -> tuple[GpuMemory, ...]:
    """Look at each GPU among these devices, once."""
    indices = {place.index or 0 for place in devices if place.type == "cuda"}
    return tuple(_look(index) for index in sorted(indices))


def _look(index: int) -> GpuMemory:
    from torch import cuda

    free, total = cuda.mem_get_info(index)
    return GpuMemory(index, total - free, total, cuda.memory_allocated(index))


def in_one_line(memory: tuple[GpuMemory, ...]) -> str:
    """Say how full each GPU is, or that the model is on none."""
    if not memory:
        return "the model is on no GPU"
    return ", ".join(
        f"GPU {gpu.index}: {bytes_in_words(gpu.used)} of {bytes_in_words(gpu.total)} used "
        f"({gpu.share:.0%}), {bytes_in_words(gpu.by_us)} by this process"
        for gpu in memory
    )
