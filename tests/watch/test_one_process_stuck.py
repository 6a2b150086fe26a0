"""One process that hangs under `hangcheck run`: its cause, its last save, and no word of others."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from processes import PROGRAMS
from watch.launched import run, verdict_of

from lightning_hangcheck.model.case import Case

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
OF_SEVERAL = re.compile(r"collective|process.group|\branks\b|other rank|the others|flight record")


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
