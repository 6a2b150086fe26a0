"""`hangcheck run` passes through what the command is and does, and never stands in its way."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, end, end_by_pid, is_sidecar, until
from watch.launched import python, run, start_run, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
WAIT_UNTIL_SEEN = """
import os, pathlib, time
while '"environment"' not in pathlib.Path("run/run.json").read_text():
    time.sleep(0.05)
"""
ANNOUNCE_AND_WAIT = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print("ready", flush=True)
signal.pause()
"""


def test_a_healthy_command_is_itself_and_its_folder_is_private(tmp_path: Path) -> None:
    ended = run(tmp_path, python("import sys; print('out'); print('err', file=sys.stderr)"))
    folder, told = tmp_path / "run", ended.stderr
    assert (ended.returncode, ended.stdout) == (0, "out\n")
    assert re.search(rf"watching \S+python\S* -c \S+.*; run folder {folder}$", told, re.M), told
    assert re.search(r"^err$", told, re.M), told
    assert re.search(rf"^FINISHED .*; run folder {folder}$", told, re.M), told
    assert verdict_of(folder).verdict == "finished"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_command_that_a_signal_killed_ends_as_in_a_shell(tmp_path: Path) -> None:
    ended = run(tmp_path, python(WAIT_UNTIL_SEEN + "os.kill(os.getpid(), 9)"))
    assert ended.returncode == 128 + signal.SIGKILL
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("crashed", (0,), "process_dead")
    assert "SIGKILL" in verdict.summary


@WHEN_ASKED_FOR
def test_quiet_prints_nothing_but_what_went_wrong(tmp_path: Path) -> None:
    well = run(tmp_path, python(WAIT_UNTIL_SEEN), "--quiet")
    assert (well.returncode, well.stderr) == (0, "")
    other = tmp_path / "other"
    other.mkdir()
    badly = run(other, python("import os; os._exit(5)"), "--quiet")
    assert badly.returncode == 5
    assert badly.stderr.startswith("CRASHED ")


def test_disabled_it_only_runs_the_command(tmp_path: Path) -> None:
    code = "import os; raise SystemExit('HANGCHECK_SESSION' in os.environ)"
    ended = run(tmp_path, python(code), HANGCHECK_DISABLE="1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (tmp_path / "run").exists()


@WHEN_ASKED_FOR
def test_a_job_that_the_command_puts_into_the_background_is_not_called_finished(
    tmp_path: Path,
) -> None:
    """The exit code comes back at once, and the last line says what goes on."""
    sleeps = [sys.executable, "-c", "import time; time.sleep(1000)"]
    script = f"import subprocess; print(subprocess.Popen({sleeps}, start_new_session=True).pid)"
    process = start_run(tmp_path, python(script))
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    try:
        assert process.wait(PATIENCE_S) == 0
        summary = verdict_of(tmp_path / "run").summary
        assert psutil.Process(pid).is_running()
        assert summary == (
            "the command ended; a process that it started still runs, unwatched: "
            f"hangcheck attach --pid {pid}"
        )
    finally:
        end_by_pid([psutil.Process(pid)])
        end(process)


def test_a_command_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    ended = run(tmp_path, ["no-such-program"])
    assert list(tmp_path.iterdir()) == [], "it leaves no run folder behind"
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "'no-such-program' cannot be started" in ended.stderr


def test_a_sidecar_that_is_killed_is_replaced_and_the_command_goes_on(tmp_path: Path) -> None:
    process = start_run(tmp_path, python(ANNOUNCE_AND_WAIT))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        first = until(lambda: sidecar_below(process.pid), "the sidecar to start")
        os.kill(first, signal.SIGKILL)
        until(lambda: sidecar_below(process.pid) not in (None, first), "a new sidecar to start")
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        end(process)
    assert process.returncode == 7
    assert err.count(f"the sidecar (pid {first}) ended with code -9") == 1


def sidecar_below(pid: int) -> int | None:
    """The one that is there; one that was killed has no command line any more."""
    return next((child.pid for child in filter(is_sidecar, psutil.Process(pid).children())), None)


@WHEN_ASKED_FOR
def test_a_program_that_closes_all_descriptors_is_not_ended_by_ours(tmp_path: Path) -> None:
    """As daemons do; torch's worker server aborts the process that closes its socket."""
    closes = """
import os, time
import torch, torch.distributed as dist
time.sleep(1)  # two turns of our pulse thread
os.closerange(3, 4096)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
time.sleep(1)
"""
    ended = run(tmp_path, python(closes))
    assert ended.returncode == 0, ended.stderr
