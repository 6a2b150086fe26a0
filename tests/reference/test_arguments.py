"""The reference script: command line, faults that strike, pauses and text."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import end, until
from reference.arguments import parse_arguments
from reference.faults import parse_fault
from reference.injection import Injection
from reference.strikes import FAULT_MARK_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from reference.arguments import Arguments


def _parse(words: str, **environment: str) -> Arguments:
    return parse_arguments(words.split(), environment)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--inject frozen@1", "'frozen@1' names no fault; use one of rank_stalled, spinning"),
        ("--inject spinning", "'spinning' is not CAUSE@RANK[:STEP]"),
        ("--inject logger_init@0:3", "write logger_init@0"),
        ("--inject spinning@7", "there is no rank 7 in a world of 1; write a rank from 0 to 0"),
        ("--inject rendezvous@0", "start the script with torchrun"),
        ("--max_steps many", "'many' is not a whole number"),
        ("--nonsense", "--nonsense"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _parse(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert sentence in said


SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
STRIKER = """
import sys
from reference.faults import parse_fault
from reference.injection import Injection
injection = Injection([parse_fault(sys.argv[1])], rank=1)
for step in range(3):
    injection.before_step(step)
    injection.in_worker(0, step)
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a strike appends its moment to."""
    monkeypatch.setenv(FAULT_MARK_VARIABLE, str(tmp_path / "mark"))
    return tmp_path / "mark"


def _inject(*faults: str, rank: int = 1) -> Injection:
    return Injection([parse_fault(fault) for fault in faults], rank)


def test_strike_says_so_and_marks_the_moment(mark: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Benchmarks subtract the mark from the moment of detection."""
    before = time.monotonic_ns()
    with pytest.raises(ValueError, match="loss of batch 4 is not a number"):
        _inject("crashed@1:4").before_step(4)
    moment, cause = mark.read_text().split()
    assert before <= int(moment) <= time.monotonic_ns()
    assert cause == "crashed"
    assert "[inject] crashed strikes rank 1 at step 4" in capfd.readouterr().err


def test_nothing_strikes_before_its_step_or_on_another_rank(mark: Path) -> None:
    for step in range(4):
        _inject("crashed@1:4").before_step(step)
    other = _inject("crashed@1:4", "logger_init@1", "rendezvous@1", rank=0)
    other.before_step(4)
    other.before_rendezvous()
    assert not other.before_logger()
    assert not mark.exists()


@pytest.mark.parametrize(
    ("fault", "has_come"),
    [
        ("rank_stalled@1:2", lambda process: process.status() == psutil.STATUS_SLEEPING),
        ("dataloader_worker@1:2", lambda process: process.status() == psutil.STATUS_SLEEPING),
        ("process_stopped@1:2", lambda process: process.status() == psutil.STATUS_STOPPED),
        ("spinning@1:2", lambda process: sum(process.cpu_times()[:2]) > 2.0),
        ("process_dead@1:2", lambda process: process.wait(timeout=120) == -9),
    ],
)
def test_a_fault_does_what_its_name_says(
    fault: str, has_come: Callable[[psutil.Process], bool], mark: Path
) -> None:
    """It has announced itself before."""
    program = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    started = subprocess.Popen([sys.executable, "-c", STRIKER, fault], env=program)
    try:
        until(mark.exists, f"{fault} to strike")
        process = psutil.Process(started.pid)
        until(lambda: has_come(process), fault)
    finally:
        end(started)
