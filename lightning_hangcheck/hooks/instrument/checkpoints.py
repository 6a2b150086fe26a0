"""Checkpoints: ``torch.save`` and ``torch.load``, wherever they are called from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.instrument.places import in_section
from lightning_hangcheck.hooks.instrument.wrapping import wrap

if TYPE_CHECKING:
    from types import ModuleType


def instrument(module: ModuleType) -> None:
    """Watch torch.serialization."""
    wrap(module, "save", in_section("saving", "torch.save of a checkpoint"))
    wrap(module, "load", in_section("loading", "torch.load of a checkpoint"))
