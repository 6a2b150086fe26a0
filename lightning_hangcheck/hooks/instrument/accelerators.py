"""The Accelerator of accelerate, which Hugging Face's Trainer makes too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.instrument.numbered import passed
from lightning_hangcheck.hooks.instrument.places import in_section
from lightning_hangcheck.hooks.instrument.wrapping import wrap

if TYPE_CHECKING:
    from types import ModuleType


def instrument(module: ModuleType) -> None:
    """Watch its construction and its barrier."""
    made = in_section("Accelerator constructor", then=lambda _: passed(8))
    wrap(module.Accelerator, "__init__", made)
    wrap(module.Accelerator, "wait_for_everyone", in_section("Accelerator.wait_for_everyone"))
