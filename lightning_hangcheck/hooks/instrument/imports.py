"""Which of our files goes to work when which module of a framework is imported."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING

import wrapt

from lightning_hangcheck import log

if TYPE_CHECKING:
    from types import ModuleType

_HERE = __package__
_JOINING = (("torch.distributed.distributed_c10d", "joining"),)
"""Modules as they are imported, and the files of this folder whose ``instrument`` then wraps."""
_RANKS_ONLY: tuple[tuple[str, str], ...] = ()


def watch_imports(*, only_joining: bool) -> None:
    """Have each watched module wrapped as soon as it is imported, or now if it is there.

    Args:
        only_joining: This process is a rank only if it joins a process group.
    """
    for module, ours in _JOINING if only_joining else (*_JOINING, *_RANKS_ONLY):
        wrapt.register_post_import_hook(partial(_instrument, ours), module)


def _instrument(ours: str, module: ModuleType) -> None:
    try:
        importlib.import_module(f"{_HERE}.{ours}").instrument(module)
    except Exception as error:  # noqa: BLE001 - else the framework's import would fail
        log.once(f"instrument-{ours}", f"{module.__name__} is not watched: {error!r}")
