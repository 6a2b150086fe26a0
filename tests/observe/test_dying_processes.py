"""The job's processes as they come and go: real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
from processes import until

from lightning_hangcheck.observe.process_tree import ProcessTree

LAUNCHER = """
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1)
print(rank.pid, flush=True)
input()
"""


def test_a_process_that_was_killed_stays_what_it_was_until_its_parent_notices() -> None:
    """Else a rank would be taken for a stranger at its end."""
    command = [sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        lines = [launcher.stdout.readline().strip() for _ in range(2)]
        pid = int("".join(lines))
        tree = ProcessTree(launcher.pid, root_belongs=False)
        (before,) = tree.take(0)
        os.kill(pid, signal.SIGKILL)
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "its end")
        (after,) = tree.take(1)
        launcher.stdin.close()
    assert before.python
    assert before.pid == pid
    assert after == before
