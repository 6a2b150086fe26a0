#!/usr/bin/env python
"""What HangCheck costs a training step: its hook alone, and within a real Trainer."""

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
from torch.utils.data import DataLoader

from lightning_hangcheck import HangCheck

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS = 7
TARGET = "under 2 us"


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
    tell([hook_alone(), *within_fit(options.steps)], as_json=options.json)


def hook_alone(steps: int = 10_000) -> Figure:
    """Call the one hook of a training step with a real Trainer that has trained."""
    check = HangCheck()
    trainer, model = fit([check], steps=2)
    batch = torch.zeros(2, 4)
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for index in range(steps):
            check.on_train_batch_start(trainer, model, batch, index)
        rounds.append((time.perf_counter() - began) / steps * 1e6)
    note = f"one hook, median of {ROUNDS} rounds of {steps} steps"
    return Figure("callback, its hook of a training step", median(rounds), "us", TARGET, note)


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
