"""The use that is planned for where somebody does not say all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.planning.from_config.config import stored_dtype
from lightning_hangcheck.planning.plan import Use

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.planning.from_config.config import Fields
    from lightning_hangcheck.planning.from_config.weights import Dtype
    from lightning_hangcheck.planning.plan import Extra

CONTEXT = 4096
"""Tokens that are planned where the user says nothing, if the model was made for so many."""


def settle_use(
    config: Mapping[str, object],
    fields: Fields,
    dtype: Dtype | None = None,
    context: int | None = None,
    batch: int = 1,
    extras: tuple[Extra, ...] = (),
) -> tuple[Use, tuple[str, ...]]:
    """Choose what the user did not say, and note each choice."""
    assumed = []
    if dtype is None:
        dtype, why = stored_dtype(config)
        assumed.append(f"weights in {dtype}: {why}")
    if context is None:
        context = min(CONTEXT, fields.positions or CONTEXT)
        assumed.append(f"a context of {context} tokens; say --context for yours")
    return Use(dtype=dtype, context=context, batch=batch, extras=extras), tuple(assumed)
