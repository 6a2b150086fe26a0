"""Makes the whole plan: the outline, what it rests on, and the ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.planning.outline import outline
from lightning_hangcheck.planning.placing import place
from lightning_hangcheck.planning.ways_out import ways_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.planning.outline import Model
    from lightning_hangcheck.planning.placing import Placing
    from lightning_hangcheck.planning.plan import Machine, Plan, Use


def make_plan(
    model: Model,
    machine: Machine,
    use: Use,
    placing: Placing = place,
    assumed: tuple[str, ...] = (),
) -> Plan:
    """Plan one use of a model on one machine, with the ways out if it does not fit.

    Args:
        model: Which.
        machine: Where.
        use: What for.
        placing: Says which weights go where; ways out are placed by the same rules, without it.
        assumed: What the caller chose where the user did not say.
    """
    plan = outline(model, machine, use, placing)
    notes = (*assumed, *_notes(model, machine, use))
    return replace(plan, notes=notes, ways_out=ways_out(model, plan))


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
    if use.extras and machine.gpus:
        yield "modules beside the model are counted on GPU 0"
    yield (
        "activations are an estimate, right within a factor of 1.5; training needs gradients and "
        "optimizer states on top, which are not in this plan"
    )
