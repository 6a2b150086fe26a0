"""Two ranks that train and evaluate: rank 0 does, rank 1 waits for it.

Started by torchrun. Arguments: how it goes, one after another: ``well`` or what is wrong.
"""

import os
import signal
import sys
from pathlib import Path

import gloo
import torch
import torch.distributed as dist
from saying import say

import lightning_hangcheck as hc
from lightning_hangcheck.errors import HangcheckError

RANK = int(os.environ["RANK"])


def step_of(how, count):
    return count + 2 if how == "apart" and RANK == 1 and count == 2 else count


def simulate(how, evaluation):
    """Longer than the process group's own limit, where a collective would fail."""
    if how == "late":
        signal.sigwait({signal.SIGUSR1})
    if how == "failing" and evaluation.step == 2:
        raise ValueError("no such scenario")
    step = "elsewhere" if how == "lost" and evaluation.step == 2 else evaluation.step
    Path(how, f"step_{step}.csv").write_text("name,score\na,0.5\nb,0.7\n")
    evaluation.expect(f"{how}/step_{{step}}.csv", rows=2, columns=["name", "score"])


def train(how):
    timeout = 2.0 if how == "late" else 240.0
    total = torch.zeros(1)
    for step in (0, 1, 2, "final"):
        share = torch.ones(1)
        dist.all_reduce(share)
        total += share
        asked = 1 if how == "again" and step == 2 else step
        asked = asked if asked == "final" else step_of(how, asked)
        with hc.rank_zero_evaluation(asked, timeout, first=0, name=how) as evaluation:
            if evaluation.needed:
                simulate(how, evaluation)
        if how == "well":
            there = Path(how, f"step_{asked}.csv").exists()
            say(f"after {asked}", RANK, needed=evaluation.needed, there=there)
    say("sum", RANK, total=total.item())


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
gloo.join()
pids = [None, None]
dist.all_gather_object(pids, os.getpid())
for way in sys.argv[1:]:
    Path(way).mkdir(exist_ok=True)
    try:
        train(way)
    except HangcheckError as error:
        say(f"failed {way}", RANK, kind=type(error).__name__, error=str(error))
        if way == "late" and RANK == 1:
            os.kill(pids[0], signal.SIGUSR1)
    hc.barrier(f"end of {way}", 240.0)
gloo.leave()
