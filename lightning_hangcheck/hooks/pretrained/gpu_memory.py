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
        reserved: By torch for this process: its tensors, and what it keeps for further ones.
    """

    index: int
    used: int
    total: int
    by_us: int
    reserved: int = 0

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
    ours, reserved = cuda.memory_allocated(index), cuda.memory_reserved(index)
    return GpuMemory(index, total - free, total, ours, reserved)


def in_one_line(memory: tuple[GpuMemory, ...]) -> str:
    """Say how full each GPU is, or that the model is on none."""
    if not memory:
        return "the model is on no GPU"
    return ", ".join(
        f"GPU {gpu.index}: {bytes_in_words(gpu.used)} of {bytes_in_words(gpu.total)} used "
        f"({gpu.share:.0%}), {bytes_in_words(gpu.by_us)} by this process, "
        f"{bytes_in_words(gpu.reserved)} reserved by it"
        for gpu in memory
    )


def clear_cache() -> str | None:
    """Give back what torch keeps of the GPUs for tensors to come.

    Returns:
        How much that was, in words; None if this process uses no GPU.
    """
    from torch import cuda

    if not cuda.is_initialized():
        return None
    before = _reserved()
    cuda.empty_cache()
    after = _reserved()
    freed = bytes_in_words(before - after)
    return f"cache of the GPU cleared: {freed} given back, {bytes_in_words(after)} reserved still"


def _reserved() -> int:
    from torch import cuda

    return sum(cuda.memory_reserved(index) for index in range(cuda.device_count()))
