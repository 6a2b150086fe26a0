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
    for name, value in (
        ("buffer", buffer),
        ("world_size", world_size),
        ("micro_batch", micro_batch),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadUsage(
                f"{name}={value!r} is not a whole number above 0", "count samples or ranks"
            )
    at_once = world_size * micro_batch
    if buffer % at_once == 0:
        return buffer // at_once
    # the nearest buffers, and the micro batches on both sides that fit the buffer as it is
    ways = [
        f"buffer={one} ({several(one // at_once, 'step')})" for one in _nearest(buffer, at_once)
    ]
    share, left = divmod(buffer, world_size)
    sides = [range(micro_batch + 1, share + 1), range(micro_batch - 1, 0, -1)] if not left else []
    firsts = (next((one for one in side if share % one == 0), 0) for side in sides)
    fitting = sorted(filter(None, firsts), key=lambda one: abs(one - micro_batch))
    ways += [f"micro_batch={one} ({several(share // one, 'step')})" for one in fitting]
    raise BadUsage(
        f"buffer {buffer} is not a multiple of world_size {world_size} x micro_batch {micro_batch} "
        f"= {at_once}: gradient accumulation would be {buffer / at_once:.4g}",
        "\n".join([f"write {' or '.join(ways)}", *_table(buffer, world_size, micro_batch)]),
    )


def _nearest(buffer: int, at_once: int) -> list[int]:
    """Multiples on both sides, the nearer one first; of 0 samples nothing is learnt."""
    below = buffer - buffer % at_once
    found = [one for one in (below, below + at_once) if one]
    return sorted(found, key=lambda one: abs(one - buffer))


def _table(buffer: int, world_size: int, micro_batch: int) -> list[str]:
    """For powers of two up to twice as many ranks or one machine's, and sizes beside that asked."""
    powers, most = [1], max(2 * world_size, SMALLEST_TABLE)
    while powers[-1] < most:
        powers.append(2 * powers[-1])
    rows = [("world_size", "steps", "buffer")]
    for ranks in sorted({*powers, max(1, world_size - 1), world_size, world_size + 1}):
        at_once = ranks * micro_batch
        steps, buffers = str(buffer // at_once), str(buffer)
        if buffer % at_once:
            nearest = _nearest(buffer, at_once)
            steps, buffers = "-", " or ".join(f"{one} ({one // at_once})" for one in nearest)
        rows.append((str(ranks), steps, buffers))
    head = f"micro batches of {micro_batch} with other world sizes:"
    return [head, *(f"  {ranks:<12}{steps:<8}{buffers}" for ranks, steps, buffers in rows)]
