"""What of a model is kept outside the GPU that computes with it: known, because the load said so.

It goes into the journal, from which the ledger of the run takes it, and is kept here for the
phases of this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.pretrained.placement import offloaded_places

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lightning_hangcheck.recorder.lifecycle import Recorder

_told: dict[str, None] = {}


def tell_offloaded(what: str, recorder: Recorder) -> None:
    """Note once that parts of a model are offloaded.

    Args:
        what: The model, where to, and by which setting, in few words.
        recorder: Of this process.
    """
    if what not in _told:
        _told[what] = None
        recorder.note("offloaded", what=what)


def tell_offloaded_parts(model: PreTrainedModel, recorder: Recorder) -> None:
    """Note it of a model whose device map put parts beside the GPU; of any other nothing."""
    places = offloaded_places(model)
    if places:
        name = type(model).__name__
        tell_offloaded(f"{name}, parts on {' and '.join(places)} (device map)", recorder)


def offloaded_so_far() -> tuple[str, ...]:
    """Return what was told of this process, in the order in which it was."""
    return tuple(_told)
