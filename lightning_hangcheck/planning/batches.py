"""How many micro batches make a buffer of samples, and what fits where they make none."""

from __future__ import annotations

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.text.shown import several

SMALLEST_TABLE = 8  # ranks; one machine of eight GPUs


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
        BadUsage: It is no whole number: the nearest buffers and micro batches that fit, and a table
            for other world sizes; or an argument is not a whole number above 0.
    """
    numbers = {"buffer": buffer, "world_size": world_size, "micro_batch": micro_batch}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            wrong = f"{name}={value!r} is not a whole number above 0"
            raise BadUsage(wrong, "count samples or ranks")
    at_once = world_size * micro_batch
    if buffer % at_once == 0:
        return buffer // at_once

    def nearest(at_once: int) -> list[int]:
        """Multiples on both sides, the nearer one first; of 0 samples nothing is learnt."""
        below = buffer - buffer % at_once
        return sorted(filter(None, (below, below + at_once)), key=lambda one: abs(one - buffer))

    # the nearest buffers, and the micro batches on both sides that fit the buffer as it is
    ways = [f"buffer={one} ({several(one // at_once, 'step')})" for one in nearest(at_once)]
    share, left = divmod(buffer, world_size)
    sides = [range(micro_batch + 1, share + 1), range(micro_batch - 1, 0, -1)] if not left else []
    firsts = (next((one for one in side if share % one == 0), 0) for side in sides)
    fitting = sorted(filter(None, firsts), key=lambda one: abs(one - micro_batch))
    ways += [f"micro_batch={one} ({several(share // one, 'step')})" for one in fitting]
    # for powers of two up to twice as many ranks or one machine's, and sizes beside that asked
    most = max(2 * world_size, SMALLEST_TABLE)
    sizes = {2**power for power in range((most - 1).bit_length() + 1)}
    table = [f"micro batches of {micro_batch} with other world sizes:"]
    rows = [("world_size", "steps", "buffer")]
    for ranks in sorted({*sizes, max(1, world_size - 1), world_size, world_size + 1}):
        size = ranks * micro_batch
        other = " or ".join(f"{one} ({one // size})" for one in nearest(size))
        fits = buffer % size == 0
        rows.append(
            (str(ranks), str(buffer // size) if fits else "-", str(buffer) if fits else other)
        )
    table += [f"  {ranks:<12}{steps:<8}{buffers}" for ranks, steps, buffers in rows]
    raise BadUsage(
        f"buffer {buffer} is not a multiple of world_size {world_size} x micro_batch {micro_batch} "
        f"= {at_once}: gradient accumulation would be {buffer / at_once:.4g}",
        "\n".join([f"write {' or '.join(ways)}", *table]),
    )
