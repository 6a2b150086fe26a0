"""The reference script: its command line, and faults that strike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import end, until
from reference.arguments import parse_arguments
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
