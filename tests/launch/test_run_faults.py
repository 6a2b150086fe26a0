"""What breaks around us is said once, and the command goes on: full disk, py-spy gone or stuck."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import PATIENCE_S, end, is_sidecar, until
from watch.launched import run_words, start_run, verdict_of

from lightning_hangcheck.rundir import read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real
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
