"""One process that hangs: its cause and its last save; its place where nobody may read it."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, PROGRAMS, end
from watch.launched import python, run, start_run, verdict_of

from lightning_hangcheck.model.case import Case

if TYPE_CHECKING:
    from pathlib import Path


OF_SEVERAL = re.compile(r"collective|process.group|\branks\b|other rank|the others|flight record")


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_lock_in_a_section_that_names_a_logger_is_a_lock(tmp_path: Path) -> None:
    program = [sys.executable, str(PROGRAMS / "saving_then_locked.py")]
    ended = run(tmp_path, program, "--stall-timeout", "12", "--on-hang", "abort")
    assert ended.returncode == 75, ended.stderr
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.verdict, verdict.cause) == ("hang", "thread_deadlock")
    assert verdict.phase == "startup"
    assert "in pull_records" in verdict.summary
    assert "inside section 'Datalogger sync'" in "".join(item.text for item in verdict.evidence)
    report = "\n".join(line for line in ended.stderr.splitlines() if "[PID:" not in line)
    assert "thread_deadlock" in report
    assert not OF_SEVERAL.search(report), report

    (newest, *_) = sorted((tmp_path / "run" / "evidence").iterdir(), reverse=True)
    case = msgspec.json.decode((newest / "case.json").read_bytes(), type=Case)
    spent = case.ranks[0].spent
    assert spent is not None
    assert spent.saves == 1
    assert spent.last_save_at is not None
    assert verdict.started_at[:10] == spent.last_save_at[:10]
    assert verdict.started_at < spent.last_save_at < str(verdict.stalled_since)[:17] + "99"


PROTECTED = """
import ctypes, time

def waits_protected():
    time.sleep(1000)

ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
waits_protected()
"""


@pytest.mark.real
def test_a_protected_rank_is_named_with_its_place_and_the_verdict_says_how(tmp_path: Path) -> None:
    """The refusal is the kernel's: root gives up the capability that would override it."""
    (tmp_path / "train.py").write_text(PROTECTED)
    unable = ["setpriv", "--bounding-set=-sys_ptrace"] if os.geteuid() == 0 else []
    running = start_run(
        tmp_path,
        [*python("")[:1], "train.py"],
        *("--stall-timeout", "4", "--on-hang", "abort"),
        prefix=unable,
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
    )
    try:
        running.communicate(timeout=PATIENCE_S)
    finally:
        end(running)
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.verdict, verdict.culprits) == ("hang", (0,))
    assert "waits_protected" in verdict.summary
    whys = [gap.why for gap in verdict.gaps if gap.what.startswith("stack of")]
    assert len(whys) == 1
    assert "by faulthandler" in whys[0]
