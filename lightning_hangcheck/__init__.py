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

from lightning_hangcheck.recorder.api import beat, checkpoint, section, step, track
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from lightning_hangcheck import transformers as transformers
    from lightning_hangcheck.hooks.callbacks.huggingface_callback import HuggingFaceHangCheck
    from lightning_hangcheck.hooks.callbacks.lightning_callback import HangCheck
    from lightning_hangcheck.hooks.evaluation.evaluation import rank_zero_evaluation
    from lightning_hangcheck.hooks.guards.barrier import barrier
    from lightning_hangcheck.hooks.guards.locked import locked
    from lightning_hangcheck.hooks.guards.make_directory import make_directory
    from lightning_hangcheck.hooks.guards.rank_zero_first import rank_zero_first
    from lightning_hangcheck.hooks.phases.phase import phase
    from lightning_hangcheck.hooks.state_report import report_state
    from lightning_hangcheck.hooks.wandb.guard import guarded_wandb_logger
    from lightning_hangcheck.planning.batches import gradient_accumulation

__all__ = [
    "HangCheck",
    "HuggingFaceHangCheck",
    "__version__",
    "barrier",
    "beat",
    "checkpoint",
    "gradient_accumulation",
    "guarded_wandb_logger",
    "locked",
    "make_directory",
    "phase",
    "rank_zero_evaluation",
    "rank_zero_first",
    "report_state",
    "section",
    "step",
    "track",
]

_LOADED_WHEN_NAMED = {
    "HuggingFaceHangCheck": "lightning_hangcheck.hooks.callbacks.huggingface_callback",
    "HangCheck": "lightning_hangcheck.hooks.callbacks.lightning_callback",
    "barrier": "lightning_hangcheck.hooks.guards.barrier",
    "gradient_accumulation": "lightning_hangcheck.planning.batches",
    "guarded_wandb_logger": "lightning_hangcheck.hooks.wandb.guard",
    "locked": "lightning_hangcheck.hooks.guards.locked",
    "make_directory": "lightning_hangcheck.hooks.guards.make_directory",
    "phase": "lightning_hangcheck.hooks.phases.phase",
    "rank_zero_evaluation": "lightning_hangcheck.hooks.evaluation.evaluation",
    "rank_zero_first": "lightning_hangcheck.hooks.guards.rank_zero_first",
    "report_state": "lightning_hangcheck.hooks.state_report",
}
# not in __all__: a star import must not hide the real transformers
_SUBMODULES_LOADED_WHEN_NAMED = ("transformers",)


def __getattr__(name: str) -> object:
    if name in _SUBMODULES_LOADED_WHEN_NAMED:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LOADED_WHEN_NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LOADED_WHEN_NAMED[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
