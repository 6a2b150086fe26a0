"""Two ranks that train and evaluate: rank 0 does, rank 1 waits for it.

Started by torchrun. Argument: how it goes, ``well`` or what is wrong.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import lightning_hangcheck as hc
from lightning_hangcheck.errors import HangcheckError

HOW = sys.argv[1]
RANK = int(os.environ["RANK"])
TIMEOUT = 2.0 if HOW == "late" else 60.0


def say(event, **words):
    os.write(1, (json.dumps({"event": event, "rank": RANK, **words}) + "\n").encode())


def step_of(count):
    return count + 2 if HOW == "apart" and RANK == 1 and count == 2 else count


def simulate(evaluation):
    """Longer than the process group's own limit, where a collective would fail."""
    if HOW == "late":
        signal.sigwait({signal.SIGUSR1})
    if HOW == "failing" and evaluation.step == 2:
        raise ValueError("no such scenario")
    step = "elsewhere" if HOW == "lost" and evaluation.step == 2 else evaluation.step
    Path(f"step_{step}.csv").write_text("name,score\na,0.5\nb,0.7\n")
    evaluation.expect("step_{step}.csv", rows=2, columns=["name", "score"])


def train():
    total = torch.zeros(1)
    for step in (0, 1, 2, "final"):
        share = torch.ones(1)
        dist.all_reduce(share)
        total += share
        asked = 1 if HOW == "again" and step == 2 else step
        asked = asked if asked == "final" else step_of(asked)
        with hc.rank_zero_evaluation(asked, TIMEOUT, first=0) as evaluation:
            if evaluation.needed:
                simulate(evaluation)
        say(f"after {asked}", needed=evaluation.needed, there=Path(f"step_{asked}.csv").exists())
    say("sum", total=total.item())


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
dist.init_process_group("gloo")
pids = [None, None]
dist.all_gather_object(pids, os.getpid())
try:
    train()
except HangcheckError as error:
    say("failed", kind=type(error).__name__, error=str(error))
    if HOW == "late" and RANK == 1:
        os.kill(pids[0], signal.SIGUSR1)
hc.barrier("end", 30.0)
dist.destroy_process_group()
