"""Makes the whole plan: the outline, what it rests on, and the ways out."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.planning.config import Fields, Weights
from lightning_hangcheck.planning.placing import (
    fitting_limits,
    place,
    seconds_per_pass,
    seconds_per_token,
    shares_of,
    sizes_of,
    speed_of,
)
from lightning_hangcheck.planning.plan import GB, SPEEDS, Plan, WayOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.planning.placing import Placing
    from lightning_hangcheck.planning.plan import Machine, PlannedPhase, Use

TENTH_OF_GB = 10**8


class Model(Struct, frozen=True):
    """A model as far as planning knows it: its name, its sizes, its weights."""

    name: str
    fields: Fields
    weights: Weights


def outline(model: Model, machine: Machine, use: Use, placing: Placing = place) -> Plan:
    """Plan one use of a model on one machine."""
    sizes = sizes_of(model.fields, model.weights, use)
    limits = fitting_limits(sizes, machine, placing)
    placement = placing(sizes, limits)
    shares = shares_of(sizes, machine, limits, placement)
    speed, reason = speed_of(shares)
    away = -2 if machine.gpus else -1
    return Plan(
        model=model.name,
        parameters=model.weights.parameters,
        sureness=model.weights.sureness,
        source=model.weights.source,
        machine=machine,
        use=use,
        layers=sizes.layers,
        weights=sizes.weights,
        cache=sizes.cache,
        activations=sizes.activations,
        extras={extra.name: extra.size for extra in use.extras},
        shares=shares,
        # cut to a tenth of a GB, so that nobody gets more than was planned
        max_memory={
            "cpu" if at == len(limits) - 1 else str(at): f"{limit // TENTH_OF_GB / 10:g}GB"
            for at, limit in enumerate(limits)
        },
        offloaded_layers=sum(placement.layers[away:]),
        offloaded=sum(placement.weights[away:]),
        seconds_per_token=seconds_per_token(shares, sizes.layers),
        seconds_per_pass=seconds_per_pass(shares),
        speed=speed,
        reason=reason,
        placed_by=placement.by,
    )


MOST_GPUS = 16
LARGEST_GPU_GB = 512
LEAST_CONTEXT = 256


def ways_out(model: Model, plan: Plan) -> Iterator[WayOut]:
    """Plan the usual changes, one at a time, each from the plan as it is."""

    def tried(change: str, machine: Machine = plan.machine, **changed: object) -> WayOut:
        made = outline(model, machine, replace(plan.use, **changed))
        better = SPEEDS.index(made.speed) < SPEEDS.index(plan.speed)
        told = "fits" if made.fits else "better" if better else "not enough"
        outcome = f"{told}: {made.reason}"
        return WayOut(change=change, outcome=outcome, fits=made.fits, speed=made.speed)

    # other formats, with what is gained only where it is
    names = {"bfloat16": "half the bytes", "int8": "8-bit", "int4": "4-bit"}
    wider = {"float32": ("bfloat16", "int8", "int4"), "int8": ("int4",), "int4": ()}
    for dtype in wider.get(plan.use.dtype, ("int8", "int4")):
        yield tried(f"{names[dtype]}: --dtype {dtype}", dtype=dtype)
    # what stands beside the model, each alone in main memory, then all of it
    extras, present = plan.use.extras, plan.machine.gpus
    on_gpu = [extra for extra in extras if not extra.on_cpu and extra.size and present]
    for moved in [[extra] for extra in on_gpu] + ([on_gpu] if len(on_gpu) > 1 else []):
        named = " and ".join(extra.name for extra in moved)
        options = " ".join(f"--extra {extra.name}={extra.size / GB:g}@cpu" for extra in moved)
        kept = tuple(replace(extra, on_cpu=extra.on_cpu or extra in moved) for extra in extras)
        yield tried(f"keep {named} on the CPU: {options}", extras=kept)
    # the least number of such GPUs, and the smallest single one
    if present:
        size = f"{present[-1] / GB:.0f} GB"
        for count in range(len(present) + 1, MOST_GPUS + 1):
            machine = replace(plan.machine, gpus=present + (present[-1],) * (count - len(present)))
            way = tried(f"{count} GPUs of {size}", machine)
            if way.fits:
                yield way
                break
        else:
            yield replace(way, change=f"more GPUs of {size}, up to {MOST_GPUS}")
    least = smallest_gpu(model, plan)
    if least:
        yield tried(f"one GPU of {least} GB", replace(plan.machine, gpus=(least * GB,)))
    # half the context until it fits, and one sequence at a time
    context, way_out = plan.use.context // 2, None
    while context >= LEAST_CONTEXT and not (way_out and way_out.fits):
        way_out = tried(f"smaller context: --context {context}", context=context)
        context //= 2
    yield from filter(None, [way_out])
    if plan.use.batch > 1:
        yield tried("one sequence at a time: --batch 1", batch=1)


def smallest_gpu(model: Model, plan: Plan) -> int | None:
    """Return the GB of the smallest single GPU that would hold all; None if none would."""

    def fits(size: int) -> bool:
        return outline(model, replace(plan.machine, gpus=(size * GB,)), plan.use).fits

    least = 1 + bisect_left(range(1, LARGEST_GPU_GB + 1), True, key=fits)  # larger fits no less
    return least if least <= LARGEST_GPU_GB else None


UNUSED = 0.5
"""Share of the GPUs' memory below which a smaller one is sold: 16, 24, 48, 80, 141 GB."""


def make_plan(
    model: Model,
    machine: Machine,
    use: Use,
    placing: Placing = place,
    assumed: tuple[str, ...] = (),
    phases: tuple[PlannedPhase, ...] = (),
) -> Plan:
    """Plan one use of a model on one machine, with the ways out if it does not fit."""
    plans = {phase.name: outline(model, machine, phase.use_in(use), placing) for phase in phases}
    if plans:  # the slower class first, then what is carried, then what is left
        plan = max(
            plans.values(),
            key=lambda one: (SPEEDS.index(one.speed), one.seconds_per_pass, -one.least_left),
        )
    else:
        plan = outline(model, machine, use, placing)
    hardest = next((name for name, one in plans.items() if one is plan), "")
    placed_for = (f"placed for {hardest}, the phase that needs the most",) if hardest else ()
    ways = [] if plan.speed in ("fast", "good") else list(ways_out(model, plan))
    if plan.fits:  # in main memory: only what would be faster helps
        ways = [way for way in ways if SPEEDS.index(way.speed) < SPEEDS.index(plan.speed)]
    total = sum(plan.machine.gpus)
    used = sum(share.memory - share.headroom for share in plan.shares if share.device.isdigit())
    least = smallest_gpu(model, plan) if plan.fits and used < UNUSED * total else None
    unused = (
        f"{used / GB:.1f} of {total / GB:.0f} GB of GPU memory are used, the rest is paid for "
        f"and stays empty: one GPU of {least} GB would do, or do more at a time: --batch"
    )
    return replace(
        plan,
        unused=(unused,) if least is not None else (),
        notes=(*assumed, *placed_for, *_notes(model, machine, plan.use)),
        phases=tuple(replace(one, name=name) for name, one in plans.items()),
        ways_out=tuple(sorted(ways, key=lambda way: not way.fits)),
    )


def _notes(model: Model, machine: Machine, use: Use) -> Iterator[str]:
    """Say what the plan rests on where that is not plain."""
    fields = model.fields
    if model.weights.sureness == "guessed":
        yield (
            f"model_type {fields.model_type!r} is not known here: weights, cache and activations "
            "are those of a Llama of these sizes, which may be far off; "
            "install transformers and accelerate to count them"
        )
    if fields.positions and use.context > fields.positions:
        yield (
            f"the context of {use.context} tokens is longer than the {fields.positions} that the "
            "model was made for"
        )
    if use.dtype in ("int8", "int4") and fields.experts:
        yield (
            "8-bit and 4-bit loading by bitsandbytes leaves experts that are kept in one tensor "
            "as they are"
        )
    if machine.gpus and any(not extra.on_cpu for extra in use.extras):
        yield "what --extra names is counted on GPU 0; @cpu behind a size moves it away"
    yield (
        "the time of an answer is an estimate from usual hardware, without the reading of the "
        "prompt; hc.section around generate measures yours"
    )
    yield (
        "activations are an estimate, right within a factor of 1.5; training needs gradients and "
        "optimizer states on top, which are not in this plan"
    )
