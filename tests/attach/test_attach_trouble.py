"""Visits to training, and to jobs that make it hard: ranks that die, containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS, RunningProgram, StartProgram, end, is_alive, until
from psutil import Process

from lightning_hangcheck.attach.job_search import FoundJob, find_jobs, look_around
from lightning_hangcheck.attach.visit import look
from lightning_hangcheck.judge import judge
from lightning_hangcheck.look.proc import slept_s
from lightning_hangcheck.look.stacks import find_py_spy
from lightning_hangcheck.model.case import Case, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lightning_hangcheck.model.verdict import Verdict

LIMITS = Limits(idle_after=1.0)
IN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def stuck_job(launcher: RunningProgram, ranks: int) -> FoundJob:
    """The ranks of starting_ranks.py, once rank 1 stands still."""
    for _ in range(ranks - 1):
        launcher.announcement()
    job = find_jobs(look_around(), [launcher.pid])[0]
    until(lambda: _stands_still(job.ranks[1].pid), "rank 1 to stand still")
    return job


def visit(job: FoundJob, limits: Limits = LIMITS) -> tuple[Case, Verdict]:
    case, _ = look(job, limits, "visit")
    return case, judge(case)


def _stands_still(pid: int) -> bool:
    slept = slept_s(pid)
    return slept is None or slept >= 1.0


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Take a script for py-spy: it does something first where it is asked about one process."""

    def install(pid: int, deed: str) -> None:
        script = tmp_path / "py-spy"
        case = f'case "$* " in *"--pid {pid} "*) {deed} ;; esac'
        script.write_text(f'#!/bin/sh\n{case}\nexec {find_py_spy()} "$@"\n')
        script.chmod(0o700)
        (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    return install


def test_a_visit_ends_in_time_where_processes_do_not_answer(
    program: StartProgram, stand_in: Callable[[int, str], None]
) -> None:
    """All looks are taken all the same: what answers is seen as often as ever."""
    job = stuck_job(program("starting_ranks.py", "stuck", "2"), 2)
    stand_in(job.ranks[1].pid, "exec sleep 1000")
    case, _ = look(job, LIMITS, "visit", time_limit_s=1.5)
    looks = [len(view.processes[0].samples) for view in case.ranks]
    assert looks in ([3, 3], [4, 4]), "a glance comes first where they slept for long already"
    assert any("gave no answer within 0." in gap.why for gap in case.gaps)


def test_a_rank_that_dies_in_the_middle_of_its_dump_is_the_culprit(
    program: StartProgram, stand_in: Callable[[int, str], None]
) -> None:
    job = stuck_job(program("starting_ranks.py", "stuck", "3"), 3)
    stand_in(job.ranks[1].pid, f"kill -9 {job.ranks[1].pid}")
    _, verdict = visit(job)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("dead", (1,), (0, 2))


def _namespaces_work() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, timeout=120, check=False)
    return tried.returncode == 0


@pytest.mark.skipif(not _namespaces_work(), reason="no pid namespace can be made here")
def test_a_job_in_a_pid_namespace_is_seen_by_its_ids_on_this_side(program: StartProgram) -> None:
    """As of a container, from its host."""
    launcher = program("in_pid_namespace.py", "starting_ranks.py", "stuck", "2")
    job = stuck_job(launcher, 2)
    case, verdict = visit(job)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1,), (0,))
    stack = case.ranks[1].processes[0].samples[-1].stack
    assert stack is not None
    assert stack.threads[0].tid == job.ranks[1].pid


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


@pytest.mark.real
def test_a_stuck_job_names_its_culprit_and_line_and_goes_on_undisturbed(tmp_path: Path) -> None:
    """A second visit sees at least the silence that the first one saw."""
    with training("stuck", tmp_path) as job:
        culprit, waiting = job.ranks[1].pid, job.ranks[0].pid
        until(lambda: (slept_s(culprit) or IDLE_AFTER_S) >= IDLE_AFTER_S, "rank 1 to stand still")
        until(lambda: (slept_s(waiting) or IDLE_AFTER_S) >= 1.0, "rank 0 to wait for it")
        limits = Limits(idle_after=IDLE_AFTER_S)
        _, first = visit(job, limits)
        _, second = visit(job, limits)
        assert all(is_alive(Process(pid)) for pid in job.pids)
    assert (first.verdict, first.culprits, first.victims) == ("hang", (1,), (0,))
    assert "waits_for_feed" in first.summary
    assert second.stalled_for_s > first.stalled_for_s
