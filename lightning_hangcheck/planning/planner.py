"""Makes the whole plan: the outline, what it rests on, and the ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.planning.outline import outline
from lightning_hangcheck.planning.placing import place
from lightning_hangcheck.planning.plan import GB, SPEEDS, PhasePlan
from lightning_hangcheck.planning.ways_out import smallest_gpu, ways_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.planning.outline import Model
    from lightning_hangcheck.planning.placing import Placing
    from lightning_hangcheck.planning.plan import Machine, Plan, Use
    from lightning_hangcheck.planning.uses.phases import PlannedPhase

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
    """Plan one use of a model on one machine, with the ways out if it does not fit.

    Args:
        model: Which.
        machine: Where.
        use: What for.
        placing: Says which weights go where; ways out are placed by the same rules, without it.
        assumed: What the caller chose where the user did not say.
        phases: In which the use differs; the one that needs the most is planned for.
    """
    plans = {one.name: outline(model, machine, one.use_in(use), placing) for one in phases}
    hardest = max(plans, key=lambda name: _hardness(plans[name]), default="")
    plan = plans[hardest] if hardest else outline(model, machine, use, placing)
    placed_for = (f"placed for {hardest}, the phase that needs the most",) if hardest else ()
    return replace(
        plan,
        unused=tuple(_unused(model, plan)),
        notes=(*assumed, *placed_for, *_notes(model, machine, plan.use)),
        phases=tuple(_told(name, one) for name, one in plans.items()),
        ways_out=ways_out(model, plan),
    )


def _hardness(plan: Plan) -> tuple[int, float, int]:
    """The slower class first, then what is carried, then what is left."""
    return SPEEDS.index(plan.speed), plan.seconds_per_pass, -_least_left(plan)


def _least_left(plan: Plan) -> int:
    return min((share.headroom for share in plan.shares if share.device != "disk"), default=0)


def _told(name: str, plan: Plan) -> PhasePlan:
    return PhasePlan(
        name=name,
        context=plan.use.context,
        batch=plan.use.batch,
        cache=plan.cache,
        activations=plan.activations,
        beside=sum(plan.extras.values()),
        least_left=_least_left(plan),
        speed=plan.speed,
        reason=plan.reason,
    )


def _unused(model: Model, plan: Plan) -> Iterator[str]:
    """Say what is paid for and stays empty."""
    total = sum(plan.machine.gpus)
    used = sum(share.memory - share.headroom for share in plan.shares if share.device.isdigit())
    least = smallest_gpu(model, plan) if plan.fits and used < UNUSED * total else None
    if least is not None:
        yield (
            f"{used / GB:.1f} of {total / GB:.0f} GB of GPU memory are used, the rest is paid for "
            f"and stays empty: one GPU of {least} GB would do, or do more at a time: --batch"
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
        yield "modules beside the model are counted on GPU 0; @cpu behind a size moves one away"
    yield (
        "the time of an answer is an estimate from usual hardware, without the reading of the "
        "prompt; hc.section around generate measures yours"
    )
    yield (
        "activations are an estimate, right within a factor of 1.5; training needs gradients and "
        "optimizer states on top, which are not in this plan"
    )
