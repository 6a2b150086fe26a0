"""A run of a case comes to an end whatever its processes do, and leaves none behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest
from hangbench.bench import NO_END, Truth, run_script
from hangbench.scoring import score
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, is_alive

if TYPE_CHECKING:
    from pathlib import Path

    from hangbench.bench import Outcome

LAUNCHER = """
import subprocess, sys
waits = "import threading; threading.Event().wait()"
child = subprocess.Popen([sys.executable, "-c", waits], start_new_session=True)
print("child", child.pid, flush=True)
{then}
"""
HANGS = Truth(verdict="hang", culprits=[0], cause="rank_stalled", processes=1, launcher="python")
LIMIT_S = 15.0
pytestmark = pytest.mark.real


def _run(folder: Path, then: str, limit_s: float) -> tuple[Outcome, int]:
    script = folder / "launch.py"
    script.write_text(LAUNCHER.format(then=then), encoding="utf-8")
    outcome = run_script(script, HANGS, folder, limit_s, {})
    return outcome, int(outcome.output.partition("child ")[2].split()[0])


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and is_alive(psutil.Process(pid))


@WHEN_ASKED_FOR
def test_a_rank_that_outlives_its_launcher_keeps_no_run_from_its_end(tmp_path: Path) -> None:
    outcome, child = _run(tmp_path, "sys.exit(3)", PATIENCE_S)
    assert outcome.exit_code == 3
    assert not _runs(child)


@WHEN_ASKED_FOR
def test_a_run_at_its_time_limit_is_ended_and_scored_by_what_was_told_until_then(
    tmp_path: Path,
) -> None:
    outcome, child = _run(tmp_path, "child.wait()", LIMIT_S)
    assert outcome.exit_code is None
    assert outcome.told[-1] == NO_END
    assert "finished" not in outcome.told
    assert not score("case", HANGS, outcome).detected
    assert not _runs(child)
