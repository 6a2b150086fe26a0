"""Which phase a section or checkpoint speaks of, by its words."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import Phase

# The first line that shares a word with the name wins.
_PHASES: tuple[tuple[Phase, frozenset[str]], ...] = (
    ("tokenizer", frozenset({"tokenizer", "tokenizers", "vocab", "vocabulary"})),
    (
        "logger_init",
        frozenset({"wandb", "logger", "mlflow", "tensorboard", "comet", "neptune", "clearml"}),
    ),
    ("trainer_init", frozenset({"trainer"})),
    ("rendezvous", frozenset({"rendezvous", "init_process_group"})),
    ("validation", frozenset({"validation", "validating"})),
    ("generate", frozenset({"generate", "generation", "generating"})),
    ("dataloading", frozenset({"dataloader", "dataset", "dataloading"})),
    ("teardown", frozenset({"teardown", "shutdown", "cleanup", "destroy_process_group"})),
    ("model_load", frozenset({"model", "weights"})),
)
# the trainer's and the model's own work has phases of its own, which the callback shows
_WORK = frozenset({"fit", "train", "training", "validate", "test", "predict", "step", "epoch"})
_DONE = frozenset(
    {
        "ready",
        "loaded",
        "created",
        "configured",
        "finished",
        "done",
        "initialized",
        "built",
        "parsed",
    }
)
_ENDING = frozenset({"finish", "finishing", "close", "closing"})
_SAVING = frozenset({"save", "saving", "write", "writing"})
_LOADING = frozenset({"load", "loading", "restore", "restoring"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_IDENTIFIER = re.compile(r"\w+")


@lru_cache(maxsize=256)
def phase_of_section(name: str) -> Phase | None:
    """The phase that an open section of this name means, None if its words tell nothing."""
    words = _words(name)
    if "checkpoint" in words:
        return "checkpoint_save" if words & _SAVING else "model_load" if words & _LOADING else None
    if words & _WORK:
        return None
    phase = next((phase for phase, known in _PHASES if words & known), None)
    return "teardown" if phase == "logger_init" and words & _ENDING else phase


@lru_cache(maxsize=256)
def phase_after_checkpoint(name: str, present: Phase | None) -> Phase | None:
    """The phase after a checkpoint of this name.

    A checkpoint says what is done ("Model created"), rarely what begins, so it ends the phase that
    it names and opens none, except the end of all: "Training finished".

    Args:
        name: Of the checkpoint.
        present: The phase before it.
    """
    words = _words(name)
    if words & {"training", "script"} and words & {"finished", "done", "complete", "completed"}:
        return "teardown"
    if present is not None and words & _DONE and phase_of_section(name) == present:
        return "startup"
    return present


def _words(name: str) -> frozenset[str]:
    """Those of CamelCase and snake_case, and whole identifiers."""
    return frozenset(word.lower() for word in _WORD.findall(name) + _IDENTIFIER.findall(name))
