"""A job of one process hears nothing of ranks that it has not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    IN_GETITEM,
    IN_LOAD,
    IN_LOADER,
    IN_WANDB,
    LOCKED,
    MAIN,
    gone,
    job,
    rank,
    torch,
    user,
    with_kernel,
    with_lock_owner,
    with_threads,
    worker,
)
from cases import waiting_for as waits

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import Gap, MemoryUse
from lightning_hangcheck.report.verdict_text import render

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.slugs import Cause

OF_SEVERAL = re.compile(
    r"collective|process.group|\bgroup\b|\branks\b|(other|every|each|all) ranks?\b|the others"
    r"|barrier|torchrun|distributed|flight record",
    re.IGNORECASE,
)
SAVING = (MAIN, user("save_weights", 7), torch("save", "serialization.py"))
LOADING = (MAIN, user("begin", 7), torch("load", "serialization.py"))


def alone(*stack: Any, **fields: Any) -> RankView:
    return rank(0, *stack, silent=301.0, **fields)


STUCK: dict[Cause, RankView] = {
    "rank_stalled": alone(IN_LOAD),
    "spinning": alone(IN_LOAD, cpu=1.0),
    "process_stopped": alone(IN_LOAD, state="T"),
    "dataloader_worker": alone(IN_LOADER, children=[worker(0, IN_GETITEM)]),
    "file_lock": alone(IN_LOAD, **waits("lock", "flock", "/data/x.lock", 4711)),
    "network_wait": alone(IN_LOAD, **waits("socket", "recvfrom", "10.0.0.7:443")),
    "filesystem_wait": alone(IN_LOAD, **waits("file", "read", "/data/x")),
    "checkpoint_io": alone(SAVING, **waits("file", "write", "/data/x.ckpt")),
    "model_load": alone(LOADING),
    "logger_init": alone(IN_WANDB),
    "thread_deadlock": with_threads(alone(IN_LOAD), LOCKED),
    "gil_held": with_lock_owner(alone(IN_LOAD)),
    "memory_pressure": with_kernel(
        alone(IN_LOAD), major_faults=lambda n, _: 400 * n, memory=MemoryUse(97, 100, "machine")
    ),
    "unknown": alone(),
}


def _told(case: Case) -> str:
    return render(case, judge(case), "run")


@pytest.mark.parametrize("cause", STUCK)
def test_a_verdict_on_one_process_speaks_of_one(cause: Cause) -> None:
    why = "its process is stopped, so its server does not answer"
    missed = Gap("flight record", 0, why, "flight_record")
    case = job(STUCK[cause], gaps=(missed,), command="python train.py")
    verdict = judge(case)
    assert (verdict.cause, verdict.culprits) == (cause, (0,))
    assert verdict.phase is not None
    assert verdict.remedies
    assert not OF_SEVERAL.search(_told(case)), _told(case)


@pytest.mark.parametrize("code", [-9, 1, 3])
def test_a_crash_of_one_process_speaks_of_one(code: int) -> None:
    case = job(gone(0, code, words="KeyError: 3"), ended=True, exit_code=1, command="python x.py")
    assert judge(case).verdict == "crashed"
    assert judge(case).remedies
    assert not OF_SEVERAL.search(_told(case)), _told(case)
