"""What may make a generation slow or fail, seen before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.hooks.pretrained.gpu_memory import GpuMemory

FULL = 0.9  # share of a GPU's memory; what a generation remembers has to fit into the rest


def doubts_before(
    device_type: str, memory: Sequence[GpuMemory], offloaded: Sequence[str]
) -> list[str]:
    """Name each doubt and the way out.

    Args:
        device_type: Of the first parameter.
        memory: Of the GPUs that the model is on.
        offloaded: Places beside a GPU that hold parts of the model.
    """
    found = [
        f"GPU {gpu.index} is {gpu.share:.0%} full before generation: it may run out of memory or "
        "become very slow; use a smaller batch or context, 8 bits, or more GPUs"
        for gpu in memory
        if gpu.share > FULL
    ]
    if offloaded:
        found.append(
            f"parts of the model are offloaded ({', '.join(offloaded)}): each token waits for them "
            "to be copied; load in 8 bits or on more GPUs to keep the model on GPUs"
        )
    elif device_type == "cpu":
        found.append(
            "the model is on the CPU, where a large one takes seconds a token; "
            "load it with device_map='auto' to use the GPUs"
        )
    return found
