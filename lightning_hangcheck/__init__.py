"""lightning-hangcheck: which rank hangs, at which line, why, and what to do.

    import lightning_hangcheck as hc

    hc.checkpoint("Model created")
    with hc.section("WandbLogger constructor"):
        logger = WandbLogger(project="demo")
    hc.beat()

Each name is loaded on first use: importing this takes 1 ms and imports neither torch nor lightning.
"""

from __future__ import annotations

import _thread
import importlib

from lightning_hangcheck.version import __version__

TYPE_CHECKING = False  # importing typing for it would be nearly all of the import cost
if TYPE_CHECKING:
    from lightning_hangcheck import transformers as transformers
    from lightning_hangcheck.hooks.callbacks import HangCheck, HuggingFaceHangCheck
    from lightning_hangcheck.hooks.evaluation import rank_zero_evaluation
    from lightning_hangcheck.hooks.guards import barrier, locked, make_directory, rank_zero_first
    from lightning_hangcheck.hooks.phases import phase
    from lightning_hangcheck.hooks.state_report import report_state
    from lightning_hangcheck.hooks.wandb_guard import guarded_wandb_logger
    from lightning_hangcheck.planning.plan import gradient_accumulation
    from lightning_hangcheck.recorder.api import beat, checkpoint, section, step, track

__all__ = [
    "HangCheck", "HuggingFaceHangCheck", "__version__", "barrier", "beat", "checkpoint",
    "gradient_accumulation", "guarded_wandb_logger", "locked", "make_directory", "phase",
    "rank_zero_evaluation", "rank_zero_first", "report_state", "section", "step", "track",
]  # fmt: skip

_LOADED_WHEN_NAMED = {
    "hooks.callbacks": ("HangCheck", "HuggingFaceHangCheck"),
    "hooks.evaluation": ("rank_zero_evaluation",),
    "hooks.guards": ("barrier", "locked", "make_directory", "rank_zero_first"),
    "hooks.phases": ("phase",),
    "hooks.state_report": ("report_state",),
    "hooks.wandb_guard": ("guarded_wandb_logger",),
    "planning.plan": ("gradient_accumulation",),
    "recorder.api": ("beat", "checkpoint", "section", "step", "track"),
}


_loading: list[int] = []
"""Threads that are loading a name; a signal handler in such a thread may not import."""


class _NotYet:
    """Records nothing: for a signal handler that runs while its thread loads the recorder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *given: object, **_: object) -> object:
        return given[0] if self._name == "track" else self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def __getattr__(name: str) -> object:
    if name == "transformers":  # not in __all__: a star import must not hide the real one
        return importlib.import_module(f"{__name__}.{name}")
    for module, names in _LOADED_WHEN_NAMED.items():
        if name in names:
            thread = _thread.get_ident()
            if module == "recorder.api" and thread in _loading:
                return _NotYet(name)
            _loading.append(thread)
            try:
                found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            finally:
                _loading.remove(thread)
            return globals().setdefault(name, found)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
