"""What a checkpoint holds beside the weights, by the names of its keys or files; none is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.naming.phase_words import words_of

if TYPE_CHECKING:
    from collections.abc import Iterable

PARTS = {
    "optimizer state": frozenset({"optimizer", "optimizers", "optim", "opt", "groups"}),
    "scheduler": frozenset({"scheduler", "schedulers", "sched", "lrs"}),
    "history": frozenset(
        {"trainer", "loops", "loop", "epoch", "epochs", "step", "steps", "iteration", "iterations"}
        | {"history", "progress", "log", "logs", "losses", "metrics"}
    ),
}
"""What training needs to go on as if it had never stopped, by words of the names under which it is
kept: Lightning's keys ``optimizer_states``, ``lr_schedulers``, ``loops``; Hugging Face's files
``optimizer.pt``, ``scheduler.pt``, ``trainer_state.json``; those of PyTorch's tutorial on saving,
``optimizer_state_dict``, ``epoch``; an optimizer's own ``param_groups``, a scheduler's own
``base_lrs``."""
MOST_NAMES = 10_000


def parts_held(names: Iterable[object]) -> frozenset[str]:
    """Return the parts of `PARTS` that a checkpoint of such keys or files holds.

    Args:
        names: Keys of a dictionary, or names of a folder's files.
    """
    words: set[str] = set()
    for _, name in zip(range(MOST_NAMES), names, strict=False):
        words.update(words_of(name) if isinstance(name, str) else ())
    return frozenset(part for part, known in PARTS.items() if known & words)
