#!/usr/bin/env python
"""What `hangcheck run` costs a step of a tiny model: with and without, in turns.

The script that is measured never imports us. A step is processor time of all threads of the rank,
first steps left out, so that other work on the machine disturbs it little.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from figures import Figure, tell

LIGHTNING = """
import logging, os, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from lightning.pytorch import LightningModule, Trainer
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
steps, took, warm = int(sys.argv[1]), [], 200

class Tiny(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.at = 0

    def training_step(self, batch, index):
        if index == warm:
            self.at = time.process_time_ns()
        if index == steps - 1:
            took.append((time.process_time_ns() - self.at) / (steps - 1 - warm) / 1e3)
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

trainer = Trainer(
    accelerator="cpu", devices=1, max_steps=steps, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
data = torch.utils.data.DataLoader(torch.zeros(2 * steps, 4), batch_size=2)
trainer.fit(Tiny(), data)
open(sys.argv[2], "w").write(str(took[0]))
"""
DDP = """
import os, sys, time, torch
from torch import distributed as dist
dist.init_process_group("gloo")
steps, warm = int(sys.argv[1]), 200
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.zeros(2 * steps, 4), batch_size=2)
for index, batch in enumerate(loader):
    if index == warm:
        at = time.process_time_ns()
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
took = (time.process_time_ns() - at) / (steps - warm) / 1e3
open(sys.argv[2], "w").write(str(took))
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1")
WATCHED = (sys.executable, "-m", "lightning_hangcheck", "run", "--")
CASES = {"a Lightning step": LIGHTNING, "a step of a DDP loop": DDP}


def main() -> None:
    """Measure each kind of loop and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="steps of each run (2000)")
    parser.add_argument("--pairs", type=int, default=5, help="runs without and with (5)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = []
    for name, code in CASES.items():
        figures += _measure(name, code, options.steps, options.pairs)
    tell(figures, as_json=options.json)


def _measure(name: str, code: str, steps: int, pairs: int) -> list[Figure]:
    without, extra = [], []
    for turn in range(pairs):
        # who goes first changes, so that a drift of the machine favours nobody
        order = ((), WATCHED) if turn % 2 == 0 else (WATCHED, ())
        took = {prefix: _step_us(code, steps, prefix) for prefix in order}
        without.append(took[()])
        extra.append(took[WATCHED] - took[()])
    cost = median(extra)
    note = (
        f"median of {pairs} differences, {median(without):.0f} us without, "
        f"machine load {os.getloadavg()[0]:.1f}"
    )
    share = 100 * cost / median(without)
    return [
        Figure(f"hangcheck run, {name} of a tiny model", cost, "us", "", note),
        Figure("the same, of the step", share, "%", "under 1 %", ""),
    ]


def _step_us(code: str, steps: int, prefix: tuple[str, ...]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        script, answer = Path(folder, "train.py"), Path(folder, "took")
        script.write_text(code)
        subprocess.run(
            [*prefix, *TORCHRUN, str(script), str(steps), str(answer)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HANGCHECK_CONSOLE": "off"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=300,
        )
        return float(answer.read_text())


if __name__ == "__main__":
    main()
