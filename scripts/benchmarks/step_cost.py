#!/usr/bin/env python
"""What `hangcheck run` costs a step of a tiny model: with and without, in turns.

The script that is measured never imports us. Processor time of all threads of the rank is taken of
blocks of steps, first steps left out. What a step pays is in every block, so the cheapest ones tell
it: other work on the machine, which shares its cores and caches, makes the others dearer by a
quarter and more. What comes now and then (a pulse twice a second) is in the median.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from figures import Figure, tell

LIGHTNING = """
import logging, os, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from lightning.pytorch import LightningModule, Trainer
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
steps, took, warm, block = int(sys.argv[1]), [], 200, 25

class Tiny(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        if index >= warm and index % block == 0:
            took.append(time.process_time_ns())
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

trainer = Trainer(
    accelerator="cpu", devices=1, max_steps=steps, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
data = torch.utils.data.DataLoader(torch.zeros(2 * steps, 4), batch_size=2)
trainer.fit(Tiny(), data)
open(sys.argv[2], "w").write(str(took))
"""
DDP = """
import os, sys, time, torch
from torch import distributed as dist
dist.init_process_group("gloo")
steps, took, warm, block = int(sys.argv[1]), [], 200, 25
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.zeros(2 * steps, 4), batch_size=2)
for index, batch in enumerate(loader):
    if index >= warm and index % block == 0:
        took.append(time.process_time_ns())
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
open(sys.argv[2], "w").write(str(took))
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1")
WATCHED = (sys.executable, "-m", "lightning_hangcheck", "run", "--")
BLOCK = 25  # steps, as in the scripts above
CHEAPEST = 0.02  # share of all blocks that are cheaper than the one that is told
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
    without: list[float] = []
    watched: list[float] = []
    for turn in range(pairs):
        # who goes first changes, so that a drift of the machine favours nobody
        order = ((without, ()), (watched, WATCHED))
        for blocks, prefix in order if turn % 2 == 0 else reversed(order):
            blocks += _blocks_us(code, steps, prefix)
    note = f"{pairs} runs each, machine load {os.getloadavg()[0]:.1f}"
    figures = []
    for which, target, share in (("cheapest", "under 1 %", CHEAPEST), ("median", "", 0.5)):
        before, after = (sorted(one)[int(share * len(one))] for one in (without, watched))
        what = f"hangcheck run, {name} of a tiny model, {which} blocks"
        figures += [
            Figure(what, after - before, "us", "", f"{before:.0f} us without, {note}"),
            Figure("the same, of the step", 100 * (after - before) / before, "%", target, ""),
        ]
    return figures


def _blocks_us(code: str, steps: int, prefix: tuple[str, ...]) -> list[float]:
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
        at_ns = json.loads(answer.read_text())
    return [(end - begin) / BLOCK / 1e3 for begin, end in pairwise(at_ns)]


if __name__ == "__main__":
    main()
