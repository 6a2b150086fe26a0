"""lightning-hangcheck: which rank hangs, at which line, why, and what now.

    import lightning_hangcheck as hc

    hc.checkpoint("Model created")
    with hc.section("WandbLogger constructor"):
        logger = WandbLogger(project="demo")
    hc.beat()

Importing this imports neither torch nor lightning; what needs them is loaded when first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lightning_hangcheck.recorder.api import beat, checkpoint, section
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from lightning_hangcheck.hooks.lightning_callback import HangCheck
    from lightning_hangcheck.hooks.rank_zero_first import rank_zero_first
    from lightning_hangcheck.hooks.wandb_guard import guarded_wandb_logger

__all__ = [
    "HangCheck",
    "__version__",
    "beat",
    "checkpoint",
    "guarded_wandb_logger",
    "rank_zero_first",
    "section",
]

_LOADED_WHEN_NAMED = {
    "HangCheck": "lightning_hangcheck.hooks.lightning_callback",
    "guarded_wandb_logger": "lightning_hangcheck.hooks.wandb_guard",
    "rank_zero_first": "lightning_hangcheck.hooks.rank_zero_first",
}


def __getattr__(name: str) -> object:
    if name not in _LOADED_WHEN_NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LOADED_WHEN_NAMED[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
