"""How a job ends: after a restart, before anybody looked, by its launcher, with what it left."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, StartProgram, until
from watch.launched import python, run, verdict_of

from lightning_hangcheck.launch.job import end_ranks
from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.session.session import SessionFacts, open_session

if TYPE_CHECKING:
    from pathlib import Path


def test_only_the_very_processes_that_hung_are_ended(program: StartProgram) -> None:
    """A process id that was given to another one since is not that of the rank."""
    hung, younger = program("sleeping.py"), program("sleeping.py")
    starts = [read_process_stat(one.pid) for one in (hung, younger)]
    assert starts[0] is not None
    assert starts[1] is not None
    ranks = [(younger.pid, starts[1].started_ticks - 1), (hung.pid, starts[0].started_ticks)]
    end_ranks(ranks)
    assert hung.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert younger.process.poll() is None
    end_ranks(ranks)


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_job_that_nobody_starts_again_is_ended_and_says_so(tmp_path: Path) -> None:
    waits = python("import threading; threading.Event().wait()")
    patience = ("--set", "idle_after=4", "--stall-timeout", "4")
    ended = run(tmp_path, waits, "--on-hang", "restart", *patience)
    assert ended.returncode == 75
    assert "the ranks are not started again: no torchrun started them" in ended.stderr
    assert "the job is ended because of the hang (--on-hang restart)" in ended.stderr
    assert verdict_of(tmp_path / "run").verdict == "hang"


RANK = """
import os
from lightning_hangcheck.recorder.lifecycle import current
current().learn_identity({rank}, 2, {rank})
{end}
"""


@pytest.mark.real
def test_a_sidecar_that_comes_too_late_tells_what_the_pages_still_say(tmp_path: Path) -> None:
    facts = SessionFacts(
        run_dir=str(tmp_path / "run"),
        command="train",
        started_at="2026-01-01T00:00:00.000Z",
        root_pid=0,
    )
    session = open_session(tmp_path / "shared" / "session", facts)
    session.sidecar_file.touch()  # ranks leave their pages to a sidecar that is there
    for rank, end in ((0, ""), (1, "raise ValueError('bad sample')")):
        subprocess.run(
            [sys.executable, "-c", RANK.format(rank=rank, end=end)],
            env={"HANGCHECK_SESSION": str(session.path), "PATH": "/usr/bin:/bin"},
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=PATIENCE_S,
        )
    sidecar = [sys.executable, "-m", "lightning_hangcheck.watch.sidecar", str(session.path)]
    subprocess.run(sidecar, check=True, timeout=PATIENCE_S)
    until((tmp_path / "run" / "verdict.json").exists, "the verdict")
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.verdict, verdict.culprits) == ("crashed", (1,))
    assert "bad sample" in verdict.summary
    until(lambda: not session.path.exists(), "the session to be freed")
    late = subprocess.run(sidecar, capture_output=True, timeout=PATIENCE_S, check=False)
    assert (late.returncode, late.stderr) == (0, b""), "nothing is left to say"


APART_OF_A_CHILD = """
import os, signal, subprocess, sys, time
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.launch.job import Job

job = Job([sys.executable, "-c", "pass"], os.environ, set())
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    def write_to_what_stalls():
        signal.pause()
    try:
        apart(0.1, write_to_what_stalls)
    except NoAnswerFromStorage:
        os._exit(0)
os.waitpid(child, 0)
while job.exit_code is None:
    job.reap([])
from lightning_hangcheck.look.proc import descendants
orphans = [one.pid for one in descendants(os.getpid())]
left = job.processes([])
for pid in orphans:
    os.kill(pid, signal.SIGKILL)
assert orphans, "nothing was left behind: this shows nothing"
assert left == [], left
"""


def test_what_writes_for_the_sidecar_is_no_process_of_the_job() -> None:
    """Seen: each run with a suspicion ended with "a process that it started still runs"."""
    code = [sys.executable, "-c", APART_OF_A_CHILD]
    ended = subprocess.run(code, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
