"""How many micro batches make a buffer of samples, and what fits where they make none."""

from __future__ import annotations

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.text.shown import several


def gradient_accumulation(buffer: int, world_size: int, micro_batch: int) -> int:
    """Steps over which gradients add up until all ranks together have seen a buffer of samples.

    Example:
        >>> gradient_accumulation(buffer=512, world_size=2, micro_batch=4)
        64

    It is ``buffer / (world_size * micro_batch)``. Rounded, as ``//`` does it, samples would be left
    over in every step, or ranks would make different numbers of steps and wait for each other.

    Args:
        buffer: Samples for one step of the optimizer, of all ranks.
        world_size: How many ranks there are.
        micro_batch: Samples that one rank takes at once.

    Raises:
        BadUsage: It is no whole number: the nearest buffers and micro batches that fit; or an
            argument is not a whole number above 0.
    """
    numbers = {"buffer": buffer, "world_size": world_size, "micro_batch": micro_batch}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            wrong = f"{name}={value!r} is not a whole number above 0"
            raise BadUsage(wrong, "count samples or ranks")
    at_once = world_size * micro_batch
    if buffer % at_once == 0:
        return buffer // at_once

    # the nearest buffers, none of 0 samples, and the micro batches on both sides that fit this one
    below = buffer - buffer % at_once
    buffers = sorted(filter(None, (below, below + at_once)), key=lambda one: abs(one - buffer))
    ways = [f"buffer={one} ({several(one // at_once, 'step')})" for one in buffers]
    share, left = divmod(buffer, world_size)
    sides = [range(micro_batch + 1, share + 1), range(micro_batch - 1, 0, -1)] if not left else []
    firsts = (next((one for one in side if share % one == 0), 0) for side in sides)
    fitting = sorted(filter(None, firsts), key=lambda first: abs(first - micro_batch))
    ways += [f"micro_batch={one} ({several(share // one, 'step')})" for one in fitting]
    raise BadUsage(
        f"buffer {buffer} is not a multiple of world_size {world_size} x micro_batch {micro_batch} "
        f"= {at_once}: gradient accumulation would be {buffer / at_once:.4g}",
        f"write {' or '.join(ways)}",
    )
