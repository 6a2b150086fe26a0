"""Checkpoints: ``torch.save`` and ``torch.load`` wherever they are called, and trainers' saves.

A section that speaks of saving a checkpoint counts as a save when it ends well, so the name must be
true: ``torch.save`` writes many other things too.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.instrument.places import in_section
from lightning_hangcheck.hooks.instrument.wrapping import WatchedFunction, by_name, wrap

if TYPE_CHECKING:
    from types import ModuleType

    from lightning_hangcheck.hooks.instrument.wrapping import Call


def instrument(module: ModuleType) -> None:
    """Watch torch.serialization."""
    signature = inspect.signature(module.save)

    def title(call: Call) -> str:
        told = by_name(call, signature)
        kept = is_checkpoint(told.get("obj"), told.get("f"))
        return "torch.save of a checkpoint" if kept else "torch.save"

    wrap(module, "save", in_section("saving", title))
    wrap(module, "load", in_section("loading", "torch.load of a checkpoint"))


def watch_saves(trainer: type) -> None:
    """Watch the method with which a Trainer class writes a whole checkpoint; again does nothing.

    Args:
        trainer: Of Lightning or of transformers.
    """
    for name in ("save_checkpoint", "_save_checkpoint"):
        if not isinstance(vars(trainer).get(name), WatchedFunction):
            wrap(trainer, name, in_section("saving", "Trainer.save_checkpoint"))


def is_checkpoint(what: Any, where: Any) -> bool:  # noqa: ANN401 - torch.save takes anything
    """Whether ``torch.save`` keeps a state that training could go on from: a state in a file.

    Args:
        what: Is saved. A module, an optimizer and a dictionary are states; a tensor is data.
        where: A path, or an open file; a buffer in memory is no file.
    """
    is_file = isinstance(where, (str, os.PathLike)) or isinstance(getattr(where, "name", None), str)
    return is_file and (isinstance(what, Mapping) or hasattr(type(what), "state_dict"))
