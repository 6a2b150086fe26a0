"""What a watched job that is slow, or stalls on storage, is told outside."""

from __future__ import annotations

import csv
import sys
import time
from typing import TYPE_CHECKING

import pytest
from alerts.receiver import receiving
from processes import PATIENCE_S, PROGRAMS, end, until
from prometheus_client.parser import text_string_to_metric_families
from stalling_storage import StallingStorage, stalling_storage
from watch.launched import LONGEST_RUN_S, python, run, start_run, verdict_of

from lightning_hangcheck.report.saved_run import read_saved_run
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real
TORCHRUN = ("torchrun", "--nproc_per_node=2")


def test_a_rank_whose_loader_is_slow_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, [*TORCHRUN, str(PROGRAMS / "straggling.py"), "csv"])
    assert ended.returncode == 0, ended.stderr
    finished, steps, where, _trend = ended.stderr.splitlines()[-4:]
    assert finished.startswith("FINISHED")
    assert "slowest is rank 1: " in steps
    assert "rank 1: loader " in where
    kept = read_saved_run(RunFolder(tmp_path / "run")).case
    assert stragglers_lines(find_stragglers(kept))[0] == steps
    (logged,) = tmp_path.glob("logged/**/metrics.csv")
    with logged.open() as file:
        rows = [row for row in csv.DictReader(file) if row["hangcheck/step_time"]]
    assert len(rows) >= 3, "every fourth of 32 steps, but for the first"
    assert {row["hangcheck/slowest_rank"] for row in rows} == {"1"}
    assert {row["hangcheck/state"] for row in rows} == {"0"}
    assert all(float(row["hangcheck/straggler_ratio"]) > 1.0 for row in rows)
    assert all(float(row["hangcheck/step_time"]) >= 0.3 for row in rows)


HANGING = [sys.executable, str(PROGRAMS / "standing_still.py")]
"""Two ranks, each in ``take_task``."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[StallingStorage]:
    with stalling_storage(tmp_path) as mounted:
        yield mounted


def test_a_hang_is_told_and_ended_while_storage_is_silent(
    tmp_path: Path, storage: StallingStorage
) -> None:
    """Its evidence cannot be saved first; that is no reason to let the job hang."""
    run_dir = storage.folder / "run"
    process = start_run(
        *(tmp_path, HANGING, "--run-dir", str(run_dir), "--on-hang", "abort"),
        HANGCHECK_IDLE_AFTER="6",
        HANGCHECK_STALL_TIMEOUT="8",
        HANGCHECK_ABORT_GRACE="2",
    )
    try:
        until(lambda: len(list(run_dir.glob("ranks/rank-*"))) == 2, "both journals")
        storage.stall()
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        end(process)
    assert process.returncode == 75, errors
    assert "take_task" in errors
    # a busy machine may find storage silent before it is stalled
    assert errors.count("does not answer") + errors.count("is kept in") == 1, errors
    storage.answer_again()


LEAK = "xleakx"
DEAF = """import os, pathlib
assert not {'HANGCHECK_NOTIFY', 'HANGCHECK_ON_HANG_EXEC'} & set(os.environ)
pathlib.Path('pid').write_text(str(os.getpid()))"""
STUCK = "import threading\none = threading.Lock()\none.acquire()\none.acquire()"
HASTE = ("--set", "idle_after=4", "--stall-timeout", "4")
ON_HANG = """env > told.txt
echo once >> times.txt
until grep -q 'state.* 2$' job.prom; do sleep 0.1; done
cp job.prom seen.prom
kill -KILL "$(cat pid)"
"""


def metrics_of(file: Path) -> dict[str, float]:
    """Of a run of one rank, by name."""
    families = text_string_to_metric_families(file.read_text())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_a_hang_is_told_once_to_everybody(tmp_path: Path) -> None:
    """The job itself hears nothing of whom its hangs are told to."""
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    with receiving() as server:
        ended = run(
            tmp_path,
            python(f"{DEAF}\n{STUCK}"),
            *HASTE,
            *("--on-hang-exec", ON_HANG, "--prometheus", "job.prom"),
            HANGCHECK_NOTIFY=f"json://{server.address}/{LEAK}",
        )
    assert ended.returncode == 137, ended.stderr
    (message,), folder = server.got, str(tmp_path / "run")
    assert f"report: {folder}/report.html" in message["message"]
    given = dict(
        line.split("=", 1)
        for line in (tmp_path / "told.txt").read_text().splitlines()
        if line.startswith("HANGCHECK_")
    )
    assert (given["HANGCHECK_KIND"], given["HANGCHECK_RUN_DIR"]) == ("hang", folder)
    assert message["title"].startswith("HANG ")
    assert "HANGCHECK_NOTIFY" not in given
    assert (tmp_path / "times.txt").read_text() == "once\n"
    seen, after = (metrics_of(tmp_path / name) for name in ("seen.prom", "job.prom"))
    assert (seen["hangcheck_state"], seen["hangcheck_watching"]) == (2, 1)
    last = {"hang": 2, "dead": 3}[verdict_of(tmp_path / "run").verdict]
    assert (after["hangcheck_state"], after["hangcheck_watching"]) == (last, 0)
    assert after["hangcheck_stall_seconds"] > seen["hangcheck_stall_seconds"] > 3
    assert 0 < time.time() - after["hangcheck_last_progress_timestamp_seconds"] < LONGEST_RUN_S
    assert after["hangcheck_exit_code"] == -9
    left = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert LEAK.encode() not in b"".join([*left, ended.stderr.encode()])
