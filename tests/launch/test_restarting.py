"""`--on-hang restart`: whom it ends, and what it does where nobody starts the ranks again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from watch.launched import python, run, verdict_of

from lightning_hangcheck.launch.job import end_ranks
from lightning_hangcheck.machine.process_stat import read_process_stat

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram


def test_only_the_very_processes_that_hung_are_ended(program: StartProgram) -> None:
    """A process id that was given to another one since is not that of the rank."""
    hung, younger = program("sleeping.py"), program("sleeping.py")
    starts = [read_process_stat(one.pid) for one in (hung, younger)]
    assert starts[0] is not None
    assert starts[1] is not None
    ranks = [(younger.pid, starts[1].started_ticks - 1), (hung.pid, starts[0].started_ticks)]
    end_ranks(ranks)
    assert hung.process.wait(120) == -signal.SIGKILL
    assert younger.process.poll() is None
    end_ranks(ranks)


@pytest.mark.real
def test_a_job_that_nobody_starts_again_is_ended_and_says_so(tmp_path: Path) -> None:
    waits = python("import threading; threading.Event().wait()")
    patience = ("--set", "idle_after=4", "--stall-timeout", "4")
    ended = run(tmp_path, waits, "--on-hang", "restart", *patience)
    assert ended.returncode == 75
    assert "the ranks are not started again: no torchrun started them" in ended.stderr
    assert "the job is ended because of the hang (--on-hang restart)" in ended.stderr
    assert verdict_of(tmp_path / "run").verdict == "hang"
