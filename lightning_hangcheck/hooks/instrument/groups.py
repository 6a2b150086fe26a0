"""Barriers of torch.distributed, and the end of a process group."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.instrument.joining import JOINED
from lightning_hangcheck.hooks.instrument.places import in_section
from lightning_hangcheck.hooks.instrument.wrapping import wrap

if TYPE_CHECKING:
    from types import ModuleType


def instrument(module: ModuleType) -> None:
    """Watch ``barrier``, ``monitored_barrier`` and ``destroy_process_group``."""
    for name in ("barrier", "monitored_barrier"):
        wrap(module, name, in_section("dist.barrier"))
    left = in_section("destroy_process_group", then=lambda _: _leave(module))
    wrap(module, "destroy_process_group", left)


def _leave(module: ModuleType) -> None:
    """What this process starts from now on may be ranks again."""
    if not module.is_initialized() and os.environ.get(JOINED) == str(os.getpid()):
        del os.environ[JOINED]
