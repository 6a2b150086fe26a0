"""Threads that a fork cuts in half, and more threads than there are processors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

TOKENIZERS = "tokenizers' threads"
COMPUTING = "computing threads"
TIMES_TOO_MANY = 2.0
"""Below that threads take turns and nothing waits long: hyper-threads come in twos."""


def tokenizers_fork(subject: Subject) -> tuple[Check, ...]:
    """With ``TOKENIZERS_PARALLELISM=true`` forked workers use a pool of threads that is not there.

    Unset, the library itself turns its threads off in a fork that comes after their first use.

    Args:
        subject: The run.
    """
    value = subject.environment.get("TOKENIZERS_PARALLELISM", "")
    if value.lower() in ("true", "on", "yes", "y", "1", "t"):
        sentence = (
            f"TOKENIZERS_PARALLELISM={value}: a DataLoader worker forked after the tokenizer was "
            "used may wait for threads that only its parent has"
        )
        return (Check(TOKENIZERS, "warning", sentence, "export TOKENIZERS_PARALLELISM=false"),)
    return (Check(TOKENIZERS, "ok", f"TOKENIZERS_PARALLELISM is {value or 'not set'}"),)


def threads_fit(subject: Subject, processors: int | None = None) -> tuple[Check, ...]:
    """Compare threads of all ranks of this node with its processors.

    Args:
        subject: The run.
        processors: That this process may use; counted where None.
    """
    there = processors or len(os.sched_getaffinity(0))
    text = subject.environment.get("OMP_NUM_THREADS", "")
    ranks = subject.launch.local_ranks or 1
    if not text.isdecimal():
        # torchrun sets 1 for several ranks (torch/distributed/run.py); else torch takes them all
        own = 1 if subject.launch.launcher == "torchrun" and ranks > 1 else there
        source = "by default"
    else:
        own, source = int(text), f"OMP_NUM_THREADS={text}"
    sentence = f"{ranks} x {own} threads ({source}) on {there} processors"
    if ranks > 1 and ranks * own > TIMES_TOO_MANY * there:
        fitting = max(1, there // ranks)
        return (Check(COMPUTING, "warning", sentence, f"export OMP_NUM_THREADS={fitting}"),)
    return (Check(COMPUTING, "ok", sentence),)
