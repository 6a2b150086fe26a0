#!/usr/bin/env python
"""What HangCheck costs a training step: its hooks alone, and within a real Trainer."""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from statistics import median
from typing import TYPE_CHECKING

import torch
from figures import Figure, tell
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.call import _call_callback_hooks
from torch.utils.data import DataLoader

from lightning_hangcheck import HangCheck

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS = 7
ROUNDS_OF_HOOKS = 40
TARGET = "under 5 us"


class Tiny(LightningModule):
    """As little work a step as Lightning allows, so that what the hooks cost can be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        """Return a loss that has a gradient."""
        return self.layer(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="steps of each fit (1000)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    tell([*hooks_of_a_step(), *within_fit(options.steps)], as_json=options.json)


def hooks_of_a_step(steps: int = 500) -> list[Figure]:
    """Go Lightning's way to the hooks of a step, in processor time: load disturbs it little."""
    trainer, _ = fit([HangCheck()], steps=2)
    check = next(one for one in trainer.callbacks if isinstance(one, HangCheck))
    kinds: dict[str, list[Callback]] = {
        "no callback": [],
        "an empty callback": [Callback()],
        "HangCheck": [check],
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS_OF_HOOKS):
        for name, callbacks in kinds.items():
            trainer.callbacks = callbacks
            began = time.thread_time()
            _call_hooks(trainer, steps)
            took[name].append((time.thread_time() - began) / steps * 1e6)
    without = min(took.pop("no callback"))
    note = f"least of {ROUNDS_OF_HOOKS} rounds of {steps} steps, over that of no callback"
    return [
        Figure(f"hooks of a training step of {name}", min(times) - without, "us", TARGET, note)
        for name, times in took.items()
    ]


def _call_hooks(trainer: Trainer, steps: int) -> None:
    batch = torch.zeros(2, 4)
    for index in range(steps):
        _call_callback_hooks(trainer, "on_train_batch_start", batch, index)
        _call_callback_hooks(trainer, "on_before_zero_grad", None)
        _call_callback_hooks(trainer, "on_before_backward", None)
        _call_callback_hooks(trainer, "on_after_backward")
        _call_callback_hooks(trainer, "on_before_optimizer_step", None)
        _call_callback_hooks(trainer, "on_train_batch_end", None, batch, index)


def within_fit(steps: int) -> list[Figure]:
    """Time fits without a callback, with an empty one, and with HangCheck, in turn."""
    kinds: dict[str, Sequence[type[Callback]]] = {
        "no callback": (),
        "an empty callback": (Callback,),
        "HangCheck": (HangCheck,),
    }
    rounds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, callbacks in kinds.items():
            began = time.perf_counter()
            fit([kind() for kind in callbacks], steps)
            rounds[name].append((time.perf_counter() - began) / steps * 1e6)
    note = f"median of {ROUNDS} fits of {steps} steps, start and end included"
    return [
        Figure(f"training step of a tiny model with {name}", median(times), "us", "", note)
        for name, times in rounds.items()
    ]


def fit(callbacks: list[Callback], steps: int) -> tuple[Trainer, Tiny]:
    """Train a tiny model quietly on the CPU."""
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Tiny()
    trainer.fit(model, DataLoader(torch.zeros(2 * steps, 4), batch_size=2))
    return trainer, model


if __name__ == "__main__":
    main()
