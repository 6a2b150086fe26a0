"""What would help a model that does not fit: each change is planned, none is a guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.planning.outline import outline
from lightning_hangcheck.planning.plan import GB, SPEEDS, WayOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.planning.outline import Model
    from lightning_hangcheck.planning.plan import Machine, Plan, Use

MOST_GPUS = 16
LARGEST_GPU_GB = 512
LEAST_CONTEXT = 256


def ways_out(model: Model, plan: Plan) -> tuple[WayOut, ...]:
    """Plan the usual changes, one at a time; those with which everything fits come first.

    Args:
        model: Which.
        plan: That is neither fast nor good; for any other there is nothing to do.
    """
    if plan.speed in ("fast", "good"):
        return ()
    found = [
        *_smaller_numbers(model, plan),
        *_kept_on_cpu(model, plan),
        *_more_gpus(model, plan),
        *_less_text(model, plan),
    ]
    if plan.fits:  # in main memory: only what would be faster helps
        found = [way for way in found if SPEEDS.index(way.speed) < SPEEDS.index(plan.speed)]
    return tuple(sorted(found, key=lambda way: not way.fits))


def _smaller_numbers(model: Model, plan: Plan) -> Iterator[WayOut]:
    """Other formats, with what is gained only where it is."""
    names = {"bfloat16": "half the bytes", "int8": "8-bit", "int4": "4-bit"}
    wider = {"float32": ("bfloat16", "int8", "int4"), "int8": ("int4",), "int4": ()}
    for dtype in wider.get(plan.use.dtype, ("int8", "int4")):
        use = replace(plan.use, dtype=dtype)
        yield _tried(model, plan.machine, use, f"{names[dtype]}: --dtype {dtype}")


def _kept_on_cpu(model: Model, plan: Plan) -> Iterator[WayOut]:
    """What stands beside the model, each alone in main memory, then all of it."""
    extras = plan.use.extras
    on_gpu = [extra for extra in extras if not extra.on_cpu and extra.size]
    if not plan.machine.gpus:
        return
    for moved in [[extra] for extra in on_gpu] + ([on_gpu] if len(on_gpu) > 1 else []):
        kept = (replace(one, on_cpu=one.on_cpu or one in moved) for one in extras)
        use = replace(plan.use, extras=tuple(kept))
        named = " and ".join(extra.name for extra in moved)
        options = " ".join(f"--extra {one.name}={one.size / GB:g}@cpu" for one in moved)
        yield _tried(model, plan.machine, use, f"keep {named} on the CPU: {options}")


def _more_gpus(model: Model, plan: Plan) -> Iterator[WayOut]:
    """The least number of such GPUs, and the smallest single GPU."""
    present = plan.machine.gpus
    if present:
        for count in range(len(present) + 1, MOST_GPUS + 1):
            machine = replace(plan.machine, gpus=present + (present[-1],) * (count - len(present)))
            way = _tried(model, machine, plan.use, f"{count} GPUs of {_whole_gb(present[-1])}")
            if way.fits:
                yield way
                break
        else:
            yield replace(way, change=f"more GPUs of {_whole_gb(present[-1])}, up to {MOST_GPUS}")
    least = smallest_gpu(model, plan)
    if least:
        machine = replace(plan.machine, gpus=(least * GB,))
        yield _tried(model, machine, plan.use, f"one GPU of {least} GB")


def smallest_gpu(model: Model, plan: Plan) -> int | None:
    """Return the GB of the smallest single GPU that would hold all; None if none would.

    Search by halves: a larger GPU never fits less.
    """
    low, high = 0, LARGEST_GPU_GB + 1
    while high - low > 1:
        middle = (low + high) // 2
        machine = replace(plan.machine, gpus=(middle * GB,))
        low, high = (low, middle) if outline(model, machine, plan.use).fits else (middle, high)
    return high if high <= LARGEST_GPU_GB else None


def _less_text(model: Model, plan: Plan) -> Iterator[WayOut]:
    """Half the context until it fits, and one sequence at a time."""
    context = plan.use.context // 2
    way = None
    while context >= LEAST_CONTEXT and not (way and way.fits):
        use = replace(plan.use, context=context)
        way = _tried(model, plan.machine, use, f"smaller context: --context {context}")
        context //= 2
    if way is not None:
        yield way
    if plan.use.batch > 1:
        use = replace(plan.use, batch=1)
        yield _tried(model, plan.machine, use, "one sequence at a time: --batch 1")


def _tried(model: Model, machine: Machine, use: Use, change: str) -> WayOut:
    plan = outline(model, machine, use)
    what = "fits" if plan.fits else "not enough"
    return WayOut(change=change, outcome=f"{what}: {plan.reason}", fits=plan.fits, speed=plan.speed)


def _whole_gb(size: int) -> str:
    return f"{size / GB:.0f} GB"
