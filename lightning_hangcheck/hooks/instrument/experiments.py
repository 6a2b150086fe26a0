"""Experiment tracking: WandbLogger's constructor, ``wandb.init`` and ``wandb.finish``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.instrument.numbered import passed
from lightning_hangcheck.hooks.instrument.places import in_section
from lightning_hangcheck.hooks.instrument.wrapping import wrap

if TYPE_CHECKING:
    from types import ModuleType


def instrument(module: ModuleType) -> None:
    """Watch what this module has of it."""
    if hasattr(module, "WandbLogger"):
        made = in_section("WandbLogger constructor", then=lambda _: passed(9))
        wrap(module.WandbLogger, "__init__", made)
    wrap(module, "init", in_section("wandb.init"))
    finished = in_section("wandb.finish")
    wrap(module, "finish", finished)
    if hasattr(module, "Run"):
        wrap(module.Run, "finish", finished)
