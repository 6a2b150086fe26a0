"""Plans a model's memory before anything is loaded; what `hangcheck plan` calls."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.plan.hub_config import fetch_config
from lightning_hangcheck.hooks.plan.meta_model import MetaModel
from lightning_hangcheck.planning.config import count_weights, find_config, read_config, read_fields
from lightning_hangcheck.planning.placing import place
from lightning_hangcheck.planning.plan import settle_use
from lightning_hangcheck.planning.planner import Model, make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.planning.config import Dtype
    from lightning_hangcheck.planning.placing import Placement, Sizes
    from lightning_hangcheck.planning.plan import Extra, Machine, Plan, PlannedPhase


def plan_memory(
    model: str,
    machine: Machine,
    *,
    dtype: Dtype | None = None,
    context: int | None = None,
    batch: int = 1,
    extras: tuple[Extra, ...] = (),
    phases: tuple[PlannedPhase, ...] = (),
) -> Plan:
    """Say whether a model fits, where its parts go, how fast it will be, and what would help.

    Weights are counted and placed by transformers and accelerate on the model without its data
    where both are installed and know it, else by formulas. Nothing is downloaded but config.json,
    and that only for a hub name.

    Args:
        model: A model's folder, its config.json, or its name on the hub.
        machine: GPUs and main memory.
        dtype: Number format of the weights; None for the one they are stored in.
        context: Tokens of prompt and answer; None for 4,096, or as many as the model takes.
        batch: Sequences at a time.
        extras: Modules kept beside it.
        phases: In which context, batch or extras differ.

    Raises:
        BadUsage: The configuration cannot be had, read or understood.
    """
    path = find_config(model) or fetch_config(model)
    config = read_config(path)
    fields = read_fields(config)
    use, assumed = settle_use(config, fields, dtype, context, batch, extras)
    with _quiet():
        meta = _without_data(path)
        if isinstance(meta, str):
            known = Model(model, fields, count_weights(fields))
            notes = (*assumed, f"weights by formula: {meta}")
            return make_plan(known, machine, use, place, notes, phases)

        def placing(sizes: Sizes, limits: tuple[int, ...]) -> Placement:
            return meta.place(sizes, limits, use.dtype)

        known = Model(model, fields, meta.weights())
        return make_plan(known, machine, use, placing, assumed, phases)


def _without_data(config: Path) -> MetaModel | str:
    """Build the model without its data, or say why that is not possible."""
    try:
        return MetaModel(config)
    except ImportError as error:
        return f"{error.name or error} is not installed"
    except Exception as error:  # noqa: BLE001 - models raise anything on configurations they don't know; formulas still hold
        return f"transformers cannot build it ({type(error).__name__})"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to ourselves that the GPUs planned for are not in this machine, and the like."""
    loud = [logging.getLogger(name) for name in ("transformers", "accelerate")]
    levels = [logger.level for logger in loud]
    try:
        for logger in loud:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loud, levels, strict=True):
            logger.setLevel(level)
