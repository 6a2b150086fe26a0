"""One plan, without the ways out of what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.planning.from_config.config import Fields
from lightning_hangcheck.planning.from_config.weights import Weights
from lightning_hangcheck.planning.placing import fitting_limits, place, shares_of
from lightning_hangcheck.planning.plan import Plan
from lightning_hangcheck.planning.sizes import sizes_of
from lightning_hangcheck.planning.speed import seconds_per_pass, seconds_per_token, speed_of

if TYPE_CHECKING:
    from lightning_hangcheck.planning.placing import Placing
    from lightning_hangcheck.planning.plan import Machine, Use

TENTH_OF_GB = 10**8


class Model(Struct, frozen=True):
    """A model as far as planning knows it: its name, its sizes, its weights."""

    name: str
    fields: Fields
    weights: Weights


def outline(model: Model, machine: Machine, use: Use, placing: Placing = place) -> Plan:
    """Plan one use of a model on one machine.

    Args:
        model: Which.
        machine: Where.
        use: What for.
        placing: Says which weights go where; by default the same rules without the model.
    """
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
        max_memory=_max_memory(limits),
        offloaded_layers=sum(placement.layers[away:]),
        offloaded=sum(placement.weights[away:]),
        seconds_per_token=seconds_per_token(shares, sizes.layers),
        seconds_per_pass=seconds_per_pass(shares),
        speed=speed,
        reason=reason,
        placed_by=placement.by,
    )


def _max_memory(limits: tuple[int, ...]) -> dict[str, str]:
    """Cut to a tenth of a GB, so that nobody gets more than was planned."""
    names = [*map(str, range(len(limits) - 1)), "cpu"]
    cut = (limit // TENTH_OF_GB / 10 for limit in limits)
    return {name: f"{size:g}GB" for name, size in zip(names, cut, strict=True)}
