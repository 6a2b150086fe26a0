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
    from lightning_hangcheck.hooks.callbacks import HangCheck, HuggingFaceHangCheck
    from lightning_hangcheck.hooks.evaluation import rank_zero_evaluation
    from lightning_hangcheck.hooks.guards import barrier, locked, make_directory, rank_zero_first
    from lightning_hangcheck.hooks.phases import phase
    from lightning_hangcheck.hooks.state_report import report_state
    from lightning_hangcheck.hooks.wandb_guard import guarded_wandb_logger
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
    "HuggingFaceHangCheck": "lightning_hangcheck.hooks.callbacks",
    "HangCheck": "lightning_hangcheck.hooks.callbacks",
    "barrier": "lightning_hangcheck.hooks.guards",
    "gradient_accumulation": "lightning_hangcheck.planning.batches",
    "guarded_wandb_logger": "lightning_hangcheck.hooks.wandb_guard",
    "locked": "lightning_hangcheck.hooks.guards",
    "make_directory": "lightning_hangcheck.hooks.guards",
    "phase": "lightning_hangcheck.hooks.phases",
    "rank_zero_evaluation": "lightning_hangcheck.hooks.evaluation",
    "rank_zero_first": "lightning_hangcheck.hooks.guards",
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
