"""The patience that settings ask for, as a case keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.case import Limits

if TYPE_CHECKING:
    from lightning_hangcheck.settings import Settings


def patience_of(settings: Settings) -> Limits:
    """Return the patience that is in force: the figures of the settings times ``patience``."""
    factor = settings.patience
    return Limits(**{name: getattr(settings, name) * factor for name in Limits.__struct_fields__})
