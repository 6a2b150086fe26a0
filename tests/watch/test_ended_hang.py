"""Whoever ends a hung job, and however: its last verdict stands, with one more sentence on that."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from launch.terminals.terminal import CTRL_C, Terminal
from processes import PATIENCE_S, end, until
from watch.launched import LONGEST_RUN_S, PATIENT_LOOKS, record_of, run_words, start_run, verdict_of

from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
HUNG_WITHIN_S = LONGEST_RUN_S


def told(folder: Path) -> list[Verdict]:
    """All verdicts, in their order."""
    files = sorted((folder / "run" / "verdicts").glob("*.json"), key=lambda one: int(one.stem))
    return [msgspec.json.decode(one.read_bytes(), type=Verdict) for one in files]


def check_hang_stands(folder: Path, ending: str, culprit: int = 0) -> None:
    """The last verdict is the hang of this rank, with how it was ended; no other came between."""
    kinds = [verdict.verdict for verdict in told(folder)]
    assert set(kinds) <= {"suspect", "hang"}, kinds
    last = verdict_of(folder / "run")
    assert (last.verdict, last.culprits, last.cause) == ("hang", (culprit,), "rank_stalled")
    (sentence,) = [item.text for item in last.evidence if item.kind == "ending"]
    assert sentence.endswith(ending), sentence
    assert last.summary.endswith(sentence)


def hung(folder: Path) -> bool:
    return (folder / "run" / "verdict.json").exists() and (
        verdict_of(folder / "run").verdict == "hang"
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start `hangcheck run` at a terminal of its own."""
    started: list[Terminal] = []

    def at_terminal(*command: str, options: tuple[str, ...] = ()) -> Terminal:
        terminal = Terminal(tmp_path, run_words(command, *options), **AS_RANK, **IMPATIENT)
        started.append(terminal)
        return terminal

    yield at_terminal
    for terminal in started:
        terminal.end()


def test_ctrl_c(tmp_path: Path, start: Callable[..., Terminal]) -> None:
    terminal = start(*ALONE)
    terminal.until_shown("HANG  rank 0", HUNG_WITHIN_S)
    until(lambda: hung(tmp_path), "the verdict to be saved")
    # A terminal throws away what was not yet read of it at Ctrl-C.
    terminal.until_shown("hangcheck explain rank_stalled")
    terminal.type(CTRL_C)
    code = terminal.until_ended()
    assert code == 128 + signal.SIGINT, "the command's own"
    check_hang_stands(tmp_path, "the job was ended by SIGINT from the terminal")
    assert terminal.shown.count("\n      proof") == 1, "the report is printed once"
    assert "the job was ended by SIGINT from the terminal" in terminal.shown
    assert "RECOVERED" not in terminal.shown


def test_a_hung_job_that_does_not_end_when_asked_is_told_with_what_ends_it(tmp_path: Path) -> None:
    """Lightning's handler of SIGTERM waits for all ranks, and one of them is stuck."""
    process = start_run(tmp_path, LIGHTNING, **IMPATIENT)
    try:
        until(lambda: hung(tmp_path), "the hang", HUNG_WITHIN_S)
        before = verdict_of(tmp_path / "run")
        process.send_signal(signal.SIGTERM)
        until(
            lambda: "it is still there" in verdict_of(tmp_path / "run").summary,
            "a word on it",
            HUNG_WITHIN_S,
        )
        check_hang_stands(
            tmp_path,
            "it is still there, though asked to end by SIGTERM sent to hangcheck run: kill -KILL "
            + " ".join(str(rank.pid) for rank in sorted(before.ranks, key=lambda one: one.rank)),
            culprit=1,
        )
    finally:
        end(process)


def ended_when_ready(folder: Path, program: str) -> tuple[int, str]:
    """Run a program, end the job by SIGTERM once it says ``ready``; return its code and stderr."""
    hasty = {**IMPATIENT, "HANGCHECK_STALL_TIMEOUT": "8"}
    process = start_run(folder, [sys.executable, "-c", program], **hasty)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        end(process)
    return process.returncode, errors


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
    exit_code, errors = ended_when_ready(tmp_path, STEPS_AND_SAVES)
    assert exit_code == 128 + signal.SIGTERM
    assert verdict_of(tmp_path / "run").verdict == "finished", "a user who ends it is no crash"
    assert "SIGTERM" in record_of(tmp_path / "run").ended_by
    (line,) = [line for line in errors.splitlines() if line.startswith("FINISHED")]
    assert "the job was ended by SIGTERM sent to hangcheck run" in line
    assert re.search(
        r"; last checkpoint step 10; 2 steps(, \d+ s)? are lost"
        r"; run folder \S+$",
        line,
    )
    assert "RECOVERED" not in errors
