"""Jobs that no collective joins, each a real program that stands still: who is named, and when."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS, end, is_sidecar, until
from watch.launched import start_run, verdict_of

from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
PROGRAM = str(PROGRAMS / "standing_still.py")
IMPATIENT = {"HANGCHECK_IDLE_AFTER": "8"}
CALLED = ("hang", "dead")
STARVED_S = 8.0
"""Longer than the silence before the suspicion, and than 2 s, from which it counts as a lapse."""


def first_verdict(folder: Path, mode: str, *kinds: str) -> Verdict:
    """The first verdict of these kinds on a job that stands still in this mode."""
    process = start_run(folder, [sys.executable, PROGRAM, mode, str(folder)], **IMPATIENT)
    run = folder / "run"

    def told() -> Verdict | None:
        verdict = verdict_of(run) if (run / "verdict.json").exists() else None
        return verdict if verdict is not None and verdict.verdict in kinds else None

    try:
        return until(told, f"a verdict of {kinds}")
    finally:
        end(process)


@WHEN_ASKED_FOR
def test_a_rank_that_failed_is_dead_where_the_other_asks_for_its_key(tmp_path: Path) -> None:
    called = first_verdict(tmp_path, "key", *CALLED)
    assert (called.verdict, called.culprits, called.cause) == ("dead", (0,), "process_dead")
    assert "rank 1 is idle in read_key" in called.summary


@WHEN_ASKED_FOR
def test_a_launcher_that_waits_for_a_node_is_named(tmp_path: Path) -> None:
    endpoint = "127.0.0.1:0"
    words = ["-m", "torch.distributed.run", "--nnodes=2", f"--rdzv-endpoint={endpoint}"]
    command = [sys.executable, *words, "--rdzv-backend=c10d", "--rdzv-id=none-comes", PROGRAM]
    process = start_run(tmp_path, command)
    run = tmp_path / "run"
    try:
        until((run / "verdict.json").exists, "a suspicion")
        verdict = verdict_of(run)
    finally:
        end(process)
    assert (verdict.verdict, verdict.culprits) == ("suspect", ())
    assert (verdict.cause, verdict.phase) == ("rendezvous", "rendezvous")
    assert f"for the other nodes of 2 at {endpoint}" in verdict.summary


@WHEN_ASKED_FOR
def test_a_time_in_which_the_sidecar_was_not_run_is_no_recovery(tmp_path: Path) -> None:
    patient = {"HANGCHECK_IDLE_AFTER": "20"}
    process = start_run(tmp_path, [sys.executable, PROGRAM, "queue", str(tmp_path)], **patient)
    verdicts = tmp_path / "run" / "verdicts"

    def told() -> list[str]:
        files = sorted(verdicts.glob("*.json"), key=lambda file: int(file.stem))
        return [msgspec.json.decode(file.read_bytes(), type=Verdict).verdict for file in files]

    try:
        until(lambda: "suspect" in told(), "a suspicion")
        (sidecar,) = filter(is_sidecar, psutil.Process(process.pid).children())
        sidecar.send_signal(signal.SIGSTOP)
        time.sleep(STARVED_S)
        sidecar.send_signal(signal.SIGCONT)
        until(lambda: set(CALLED) & set(told()), "a hang")
    finally:
        end(process)
    assert "recovered" not in told()
    called = verdict_of(tmp_path / "run")
    assert (called.verdict, called.culprits, called.cause) == ("hang", (0, 1), "rank_stalled")
    assert "take_task" in called.summary
