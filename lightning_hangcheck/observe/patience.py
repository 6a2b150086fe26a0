"""The patience that settings ask for, as a case keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.case import Limits

if TYPE_CHECKING:
    from lightning_hangcheck.settings import Settings


def patience_of(settings: Settings) -> Limits:
    """Return the patience that is in force."""
    return Limits(
        proven_after=settings.proven_after,
        idle_after=settings.idle_after,
        busy_floor=settings.busy_floor,
        busy_factor=settings.busy_factor,
        stall_timeout=settings.stall_timeout,
    )
