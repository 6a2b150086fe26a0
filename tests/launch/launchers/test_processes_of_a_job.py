"""What counts as the job's when its command has ended: orphans of its own, and none of ours."""

from __future__ import annotations

import subprocess
import sys

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
    ended = subprocess.run(code, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
