"""Visits to real distributed training under torchrun: stuck, and healthy in ways that look bad."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS, end, is_alive, until
from psutil import Process

from lightning_hangcheck.attach.job_search import FoundJob, find_jobs, look_around
from lightning_hangcheck.attach.visit import attach
from lightning_hangcheck.look.proc import slept_s
from lightning_hangcheck.model.case import Limits
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.real
IDLE_AFTER_S = 3.0


@contextmanager
def training(mode: str, folder: Path) -> Iterator[FoundJob]:
    """Train on two ranks until the mode shows."""
    shown = folder / "shown"
    program = str(PROGRAMS / "attached_training.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    process = subprocess.Popen([*torchrun, program, mode, str(shown)], cwd=folder)
    try:
        until(lambda: shown.exists() or process.poll() is not None, f"{mode} to show")
        yield find_jobs(look_around(), [process.pid])[0]
    finally:
        end(process)


def test_a_stuck_job_names_its_culprit_and_line_and_goes_on_undisturbed(tmp_path: Path) -> None:
    """A second visit sees at least the silence that the first one saw."""
    with training("stuck", tmp_path) as job:
        culprit, waiting = job.ranks[1].pid, job.ranks[0].pid
        until(lambda: (slept_s(culprit) or IDLE_AFTER_S) >= IDLE_AFTER_S, "rank 1 to stand still")
        until(lambda: (slept_s(waiting) or IDLE_AFTER_S) >= 1.0, "rank 0 to wait for it")
        limits = Limits(idle_after=IDLE_AFTER_S)
        _, first = attach(job, limits, RunFolder(tmp_path / "first"))
        _, second = attach(job, limits, RunFolder(tmp_path / "second"))
        assert all(is_alive(Process(pid)) for pid in job.pids)
    assert (first.verdict, first.culprits, first.victims) == ("hang", (1,), (0,))
    assert "waits_for_feed" in first.summary
    assert second.stalled_for_s > first.stalled_for_s
