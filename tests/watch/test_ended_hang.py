"""Whoever ends a hung job, and however: its last verdict stands, with one more sentence on that."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from launch.terminals.terminal import CTRL_C, Terminal
from processes import PATIENCE_S, ending, until
from watch.launched import LONGEST_RUN_S, PATIENT_LOOKS, record_of, run_words, start_run, verdict_of

from lightning_hangcheck.model.verdict import Verdict

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
CASES = Path(__file__).parents[1] / "hangbench" / "cases"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
LIGHTNING = [*TORCHRUN, str(CASES / "stalled_in_training_step.py")]
ALONE = [sys.executable, "-c", "import queue; queue.Queue().get()"]
AS_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
IMPATIENT = {
    "HANGCHECK_IDLE_AFTER": "5",
    "HANGCHECK_PROVEN_AFTER": "5",
    "HANGCHECK_STALL_TIMEOUT": "60",
    **PATIENT_LOOKS,
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def check_hang_stands(folder: Path, ending: str, culprit: int = 0) -> None:
    """The last verdict is the hang of this rank, with how it was ended; no other came between."""
    files = (folder / "run" / "verdicts").iterdir()
    kinds = {msgspec.json.decode(one.read_bytes(), type=Verdict).verdict for one in files}
    assert kinds <= {"suspect", "hang"}
    last = verdict_of(folder / "run")
    assert (last.verdict, last.culprits, last.cause) == ("hang", (culprit,), "rank_stalled")
    (sentence,) = [item.text for item in last.evidence if item.kind == "ending"]
    assert sentence.endswith(ending), sentence
    assert last.summary.endswith(sentence)


def hung(folder: Path) -> bool:
    return (folder / "run" / "verdict.json").exists() and (
        verdict_of(folder / "run").verdict == "hang"
    )


def test_ctrl_c(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, run_words(ALONE), **AS_RANK, **IMPATIENT)
    try:
        terminal.until_shown("HANG  rank 0", LONGEST_RUN_S)
        until(lambda: hung(tmp_path), "the verdict to be saved")
        # A terminal throws away what was not yet read of it at Ctrl-C.
        terminal.until_shown("hangcheck explain rank_stalled")
        terminal.type(CTRL_C)
        assert terminal.until_ended() == 128 + signal.SIGINT, "the command's own"
    finally:
        terminal.end()
    check_hang_stands(tmp_path, "the job was ended by SIGINT from the terminal")
    assert terminal.shown.count("\n      proof") == 1, "the report is printed once"
    assert "the job was ended by SIGINT from the terminal" in terminal.shown
    assert "RECOVERED" not in terminal.shown


def test_a_hung_job_that_does_not_end_when_asked_is_told_with_what_ends_it(tmp_path: Path) -> None:
    """Lightning's handler of SIGTERM waits for all ranks, and one of them is stuck."""
    process = start_run(tmp_path, LIGHTNING, **IMPATIENT)
    with ending(process):
        until(lambda: hung(tmp_path), "the hang", LONGEST_RUN_S)
        before = verdict_of(tmp_path / "run")
        process.send_signal(signal.SIGTERM)
        until(
            lambda: "it is still there" in verdict_of(tmp_path / "run").summary,
            "a word on it",
            LONGEST_RUN_S,
        )
        check_hang_stands(
            tmp_path,
            "it is still there, though asked to end by SIGTERM sent to hangcheck run: kill -KILL "
            + " ".join(str(rank.pid) for rank in sorted(before.ranks, key=lambda one: one.rank)),
            culprit=1,
        )


STEPS_AND_SAVES = """
import time
import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current
for step in range(1, 13):
    current().page.enter_phase("training_step", step=step)
    if step == 10:
        with hc.section("save checkpoint"):
            pass
print("ready", flush=True)
while True:
    hc.beat()
    time.sleep(0.02)
"""


def test_a_healthy_job_that_is_ended_is_told_what_it_loses(tmp_path: Path) -> None:
    process = start_run(tmp_path, [sys.executable, "-c", STEPS_AND_SAVES], **IMPATIENT)
    with ending(process):
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert verdict_of(tmp_path / "run").verdict == "finished", "a user who ends it is no crash"
    assert "SIGTERM" in record_of(tmp_path / "run").ended_by
    (line,) = [line for line in errors.splitlines() if line.startswith("FINISHED")]
    assert "the job was ended by SIGTERM sent to hangcheck run" in line
    lost = r"; last checkpoint step 10; 2 steps(, \d+ s)? are lost; run folder \S+$"
    assert re.search(lost, line)
    assert "RECOVERED" not in errors
