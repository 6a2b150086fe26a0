"""`hangcheck run` around real jobs: how they end, what they are killed by, and faults of ours."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from long_tests import real_when_asked_for
from processes import (
    PATIENCE_S,
    StartProgram,
    end,
    end_by_pid,
    ending,
    is_sidecar,
    run_python,
    until,
)
from recorded_run import job_session
from watch.launched import python, run, run_words, start_run, verdict_of

from lightning_hangcheck.launch.run import end_ranks
from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.report.journals import read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.mark.real
def test_a_healthy_command_is_itself_and_its_folder_is_private(tmp_path: Path) -> None:
    ended = run(tmp_path, python("import sys; print('out'); print('err', file=sys.stderr)"))
    folder, told = tmp_path / "run", ended.stderr
    assert (ended.returncode, ended.stdout) == (0, "out\n")
    assert re.search(rf"watching \S+python\S* -c \S+.*; run folder {folder}$", told, re.M), told
    assert re.search(r"^err$", told, re.M), told
    assert re.search(rf"^FINISHED .*; run folder {folder}$", told, re.M), told
    assert verdict_of(folder).verdict == "finished"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.real
def test_a_command_that_a_signal_killed_ends_as_in_a_shell(tmp_path: Path) -> None:
    ended = run(tmp_path, python(WAIT_UNTIL_SEEN + "os.kill(os.getpid(), 9)"))
    assert ended.returncode == 128 + signal.SIGKILL
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("crashed", (0,), "process_dead")
    assert "SIGKILL" in verdict.summary


@real_when_asked_for
def test_quiet_prints_nothing_but_what_went_wrong(tmp_path: Path) -> None:
    well = run(tmp_path, python(WAIT_UNTIL_SEEN), "--quiet")
    assert (well.returncode, well.stderr) == (0, "")
    other = tmp_path / "other"
    other.mkdir()
    badly = run(other, python("import os; os._exit(5)"), "--quiet")
    assert badly.returncode == 5
    assert badly.stderr.startswith("CRASHED ")


@pytest.mark.real
def test_disabled_it_only_runs_the_command(tmp_path: Path) -> None:
    ours = f"'HANGCHECK_SESSION' in os.environ or os.getppid() != {os.getpid()}"
    code = f"import os; raise SystemExit({ours})"  # in our place: it gets signals itself
    ended = run(tmp_path, python(code), HANGCHECK_DISABLE="1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (tmp_path / "run").exists()


@real_when_asked_for
def test_a_job_that_the_command_puts_into_the_background_is_not_called_finished(
    tmp_path: Path,
) -> None:
    """The exit code comes back at once, and the last line says what goes on."""
    sleeps = [sys.executable, "-c", "import time; time.sleep(1000)"]
    script = f"import subprocess; print(subprocess.Popen({sleeps}, start_new_session=True).pid)"
    process = start_run(tmp_path, python(script))
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


@pytest.mark.real
def test_a_command_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    ended = run(tmp_path, ["no-such-program"])
    assert list(tmp_path.iterdir()) == [], "it leaves no run folder behind"
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "'no-such-program' cannot be started" in ended.stderr


@pytest.mark.real
def test_a_script_that_names_no_interpreter_runs_as_in_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/no/such/shell\n")
    script.chmod(0o700)
    assert run(tmp_path, ["./job.sh"]).returncode == 2
    script.write_text("exit 7\n")
    assert run(tmp_path, ["./job.sh"]).returncode == 7, "the run that never began holds no folder"


@pytest.mark.real
def test_a_sidecar_that_is_killed_is_replaced_and_the_command_goes_on(tmp_path: Path) -> None:
    process = start_run(tmp_path, python(ANNOUNCE_AND_WAIT))
    with ending(process):
        assert process.stdout.readline() == "ready\n"
        first = until(lambda: sidecar_below(process.pid), "the sidecar to start")
        os.kill(first, signal.SIGKILL)
        until(lambda: sidecar_below(process.pid) not in (None, first), "a new sidecar to start")
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 7
    assert err.count(f"the sidecar (pid {first}) ended with code -9") == 1


def sidecar_below(pid: int) -> int | None:
    """The one that is there; one that was killed has no command line any more."""
    return next((child.pid for child in filter(is_sidecar, psutil.Process(pid).children())), None)


@real_when_asked_for
def test_a_program_that_closes_all_descriptors_is_not_ended_by_ours(tmp_path: Path) -> None:
    """As daemons do; torch's worker server aborts the process that closes its socket."""
    closes = """
import os, time
import torch, torch.distributed as dist
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.page_reader import read_page

def two_turns_of_our_thread():
    for _ in range(2):
        before = read_page(current().page.buffer).pulse_ns
        while read_page(current().page.buffer).pulse_ns == before:
            time.sleep(0.01)

two_turns_of_our_thread()
os.closerange(3, 4096)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
two_turns_of_our_thread()
"""
    ended = run(tmp_path, python(closes))
    assert ended.returncode == 0, ended.stderr


IMPATIENT = {
    "HANGCHECK_IDLE_AFTER": "6",
    "HANGCHECK_STALL_TIMEOUT": "8",
    "HANGCHECK_ABORT_GRACE": "2",
}


@pytest.fixture
def unread() -> Iterator[int]:
    """The writing end of a pipe that is full, and that nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for piece in (bytes(4096), b"."):
        with suppress(BlockingIOError):
            while os.write(writing, piece):
                pass
    os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


TAKES_ITS_LOCK_TWICE = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"


@pytest.mark.real
@pytest.mark.parametrize(
    ("code", "ends_with", "kind"), [("", 0, "finished"), (TAKES_ITS_LOCK_TWICE, 75, "hang")]
)
def test_output_that_nobody_reads_keeps_neither_the_run_nor_the_verdict(
    unread: int, tmp_path: Path, code: str, ends_with: int, kind: str
) -> None:
    """A reader that pauses, a terminal stopped with Ctrl-S."""
    hangcheck = [sys.executable, "-m", "lightning_hangcheck", "run", "--run-dir", str(tmp_path)]
    command = [*hangcheck, "--on-hang", "abort", "--", sys.executable, "-c", code]
    environment = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **os.environ, **IMPATIENT}
    process = subprocess.Popen(command, stdout=unread, stderr=unread, env=environment)
    with ending(process):
        assert process.wait(timeout=PATIENCE_S) == ends_with
    assert verdict_of(tmp_path).verdict == kind


@pytest.mark.real
def test_a_run_folder_that_is_taken_away_meanwhile_is_begun_anew_and_what_it_lost_is_a_gap(
    tmp_path: Path,
) -> None:
    script = """
import pathlib, time
import lightning_hangcheck as hc
hc.checkpoint("before")
for word in ("removed", "leave"):
    while not pathlib.Path(word).exists():
        time.sleep(0.05)
    hc.checkpoint("after")
"""
    journal = tmp_path / "run" / "ranks" / "rank-0.jsonl"
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    running = start_run(tmp_path, [sys.executable, "-c", script], **rank)
    with ending(running):
        until(lambda: journal.exists() and "before" in journal.read_text(), "the journal")
        (tmp_path / "run").rename(tmp_path / "taken")
        (tmp_path / "removed").touch()
        until(journal.exists, "the journal to be begun anew")
        (tmp_path / "leave").touch()
        assert running.wait(PATIENCE_S) == 0
    (gap,) = verdict_of(tmp_path / "run").gaps
    assert gap.what == "journal rank-0.jsonl"
    lost = len((tmp_path / "taken" / "ranks" / "rank-0.jsonl").read_text().splitlines())
    assert gap.why.startswith(f"{lost} lines are missing: its file was removed or moved")
    entries, (told,) = read_journal(journal)
    assert told.why.startswith(f"{lost} of its lines are missing: its file was removed or moved")
    kept = [entry["kind"] for entry in entries]
    assert kept == ["dropped", "checkpoint", "checkpoint", "finished"]


OUTLIVING = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("asked").touch())
pathlib.Path("ready").touch()
while not pathlib.Path("leave").exists():
    time.sleep(0.1)
"""


@pytest.mark.real
def test_a_rank_that_outlives_a_killed_run_is_told_and_leaves_nothing_in_shared_memory(
    tmp_path: Path,
) -> None:
    """As `timeout -k` leaves it: asked to end, and killed before the rank has."""
    with (tmp_path / "said").open("wb") as said:
        running = subprocess.Popen(
            run_words([sys.executable, "-c", OUTLIVING]),
            cwd=tmp_path,
            env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
            stderr=said,
        )
    try:
        until((tmp_path / "ready").exists, "the rank")
        children = psutil.Process(running.pid).children()
        (rank,) = (child for child in children if OUTLIVING in child.cmdline())
        running.terminate()
        until((tmp_path / "asked").exists, "the signal to be passed on")
        running.kill()
        running.wait(PATIENCE_S)
        told = "hangcheck run was killed; rank 0 runs on, still watched; end what is left:"
        line = f"{told} kill -KILL {rank.pid}"
        until(lambda: line in (tmp_path / "said").read_text(), "the line")
        shared = Path(rank.environ()["HANGCHECK_SESSION"])
        assert shared.exists()
        (tmp_path / "leave").touch()
        until(lambda: not shared.exists(), "shared memory to be freed")
    finally:
        (tmp_path / "leave").touch()
        end(running)


def test_only_the_very_processes_that_hung_are_ended(program: StartProgram) -> None:
    """A process id that was given to another one since is not that of the rank."""
    hung, younger = program("sleeping.py"), program("sleeping.py")
    starts = [read_process_stat(one.pid) for one in (hung, younger)]
    ranks = [(younger.pid, starts[1].started_ticks - 1), (hung.pid, starts[0].started_ticks)]
    end_ranks(ranks)
    assert hung.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert younger.process.poll() is None
    end_ranks(ranks)


RANK = """
import os
from lightning_hangcheck.recorder.lifecycle import current
current().learn_identity({rank}, 2, {rank})
{end}
"""


@pytest.mark.real
def test_a_sidecar_that_comes_too_late_tells_what_the_pages_still_say(tmp_path: Path) -> None:
    session = job_session(tmp_path, root_pid=0)
    session.sidecar_file.touch()  # ranks leave their pages to a sidecar that is there
    for rank, last in ((0, ""), (1, "raise ValueError('bad sample')")):
        ours = {"HANGCHECK_SESSION": str(session.path), "PATH": "/usr/bin:/bin"}
        run_python("-c", RANK.format(rank=rank, end=last), environment=ours)
    sidecar = ("-m", "lightning_hangcheck.watch.sidecar", session.path)
    assert run_python(*sidecar, limit_s=PATIENCE_S).returncode == 0
    until((tmp_path / "run" / "verdict.json").exists, "the verdict")
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.verdict, verdict.culprits) == ("crashed", (1,))
    assert "bad sample" in verdict.summary
    until(lambda: not session.path.exists(), "the session to be freed")
    late = run_python(*sidecar)
    assert (late.returncode, late.stderr) == (0, ""), "nothing is left to say"


APART_OF_A_CHILD = """
import os, signal, subprocess, sys, time
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.launch.run import Job

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
    job.reap()
from lightning_hangcheck.look.proc import descendants
orphans = [one.pid for one in descendants(os.getpid())]
left = job.processes()
for pid in orphans:
    os.kill(pid, signal.SIGKILL)
assert orphans, "nothing was left behind: this shows nothing"
assert left == [], left
"""


def test_what_writes_for_the_sidecar_is_no_process_of_the_job() -> None:
    """Seen: each run with a suspicion ended with "a process that it started still runs"."""
    ended = run_python("-c", APART_OF_A_CHILD)
    assert ended.returncode == 0, ended.stderr
