"""What breaks around us is said once, and the command goes on: full disk, py-spy gone or stuck."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, PROGRAMS, end, is_alive, is_sidecar, until
from watch.launched import run_words, start_run, verdict_of

from lightning_hangcheck.rundir import read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.real
HANGING = [sys.executable, str(PROGRAMS / "standing_still.py"), "queue"]
"""Two ranks, each in ``take_task``."""
IMPATIENT = {
    "HANGCHECK_IDLE_AFTER": "6",
    "HANGCHECK_STALL_TIMEOUT": "8",
    "HANGCHECK_ABORT_GRACE": "2",
}


def abort_on_hang(
    folder: Path, prefix: Sequence[str] = (), hangcheck: Path | None = None, **environment: str
) -> tuple[int, str]:
    """Run a job that hangs until it is ended for it; returns exit code and error output."""
    process = start_run(
        folder,
        HANGING,
        "--on-hang",
        "abort",
        prefix=prefix,
        hangcheck=hangcheck,
        **IMPATIENT,
        **environment,
    )
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        end(process)
    return process.returncode, errors


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python that has all our packages, but no py-spy beside it."""
    home = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    everything = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(packages) / "everything.pth").write_text(everything)
    return home / "bin" / "python"


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
    try:
        assert process.wait(timeout=PATIENCE_S) == ends_with
    finally:
        end(process)
    assert verdict_of(tmp_path).verdict == kind


@WHEN_ASKED_FOR
def test_a_full_disk_costs_the_files_but_not_the_verdict(tmp_path: Path) -> None:
    code, errors = abort_on_hang(
        tmp_path, prefix=["bash", "-c", 'ulimit -f 2; exec "$@"', "limited"]
    )
    assert code == 75
    assert errors.count("verdicts are printed but not saved") == 1
    assert "HANG" in errors
    assert "take_task" in errors


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
    try:
        until(lambda: journal.exists() and "before" in journal.read_text(), "the journal")
        (tmp_path / "run").rename(tmp_path / "taken")
        (tmp_path / "removed").touch()
        until(journal.exists, "the journal to be begun anew")
        (tmp_path / "leave").touch()
        assert running.wait(PATIENCE_S) == 0
    finally:
        end(running)
    (gap,) = verdict_of(tmp_path / "run").gaps
    assert gap.what == "journal rank-0.jsonl"
    lost = len((tmp_path / "taken" / "ranks" / "rank-0.jsonl").read_text().splitlines())
    assert gap.why.startswith(f"{lost} lines are missing: its file was removed or moved")
    entries, (told,) = read_journal(journal)
    assert told.why.startswith(f"{lost} of its lines are missing: its file was removed or moved")
    kept = [entry["kind"] for entry in entries]
    assert kept == ["dropped", "checkpoint", "checkpoint", "finished"]


def test_a_folder_whose_name_is_not_utf8_is_no_reason_not_to_run(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    script = "import lightning_hangcheck as hc; hc.checkpoint('made'); print('trained')"
    ended = subprocess.run(
        [sys.executable, "-m", "lightning_hangcheck", "run", "--", sys.executable, "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "trained\n"), ended.stderr
    assert "its name is not UTF-8; this run is kept below /tmp" in ended.stderr
    (kept,) = re.findall(r"; run folder (/tmp/hangcheck-run-\S+)$", ended.stderr, re.M)[:1]
    try:
        assert "CHECKPOINT 1: made" in ended.stderr
        assert verdict_of(Path(kept)).verdict == "finished"
    finally:
        shutil.rmtree(kept)


@WHEN_ASKED_FOR
def test_without_py_spy_the_run_says_so_and_the_rank_writes_its_stack_itself(
    tmp_path: Path, bare_python: Path
) -> None:
    path = os.pathsep.join(["/usr/bin", "/bin"])
    code, errors = abort_on_hang(tmp_path, hangcheck=bare_python, PATH=path)
    assert code == 75
    assert "pip install py-spy" in errors
    verdict = verdict_of(tmp_path / "run")
    assert "take_task" in verdict.summary
    assert any("py-spy" in gap.why and "faulthandler" in gap.why for gap in verdict.gaps)


@WHEN_ASKED_FOR
def test_a_look_that_is_under_way_keeps_nobody_once_the_job_has_ended(
    tmp_path: Path, bare_python: Path
) -> None:
    """It would end by its own time limit, long after this test's patience."""
    stuck, asked = bare_python.parent / "py-spy", tmp_path / "asked"
    words = f'[ "$1" = dump ] || exit 0; echo $$ > {asked}.new; mv {asked}.new {asked}'
    stuck.write_text(f"#!/bin/sh\n{words}; exec sleep 1000\n")
    stuck.chmod(0o755)
    running = start_run(
        *(tmp_path, [sys.executable, "-c", OUTLIVING]),
        hangcheck=bare_python,
        RANK="0",
        WORLD_SIZE="1",
        HANGCHECK_PROBE_TIMEOUT="1000",
        HANGCHECK_QUIET="1",  # it would try py-spy itself before it starts
    )
    try:
        until(asked.exists, "a look")
        (sidecar,) = (one for one in psutil.Process(running.pid).children() if is_sidecar(one))
        reader = psutil.Process(int(asked.read_text()))
        (tmp_path / "leave").touch()
        assert running.wait(PATIENCE_S) == 0
        until(lambda: not is_alive(sidecar), "the sidecar's end")
        until(lambda: not is_alive(reader), "the end of what it started")
    finally:
        end(running)


OUTLIVING = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("asked").touch())
pathlib.Path("ready").touch()
while not pathlib.Path("leave").exists():
    time.sleep(0.1)
"""


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
        (rank,) = (one for one in psutil.Process(running.pid).children() if not is_sidecar(one))
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
