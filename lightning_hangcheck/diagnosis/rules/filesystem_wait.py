"""filesystem_wait: a rank is blocked in file input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.file_waiting import blame_for_file, waiting_for_files
from lightning_hangcheck.diagnosis.rules.finding import Rule

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.rules.finding import Finding, Situation


def find(situation: Situation) -> Finding | None:
    """Blame the suspects whose system call waits for a file."""
    waiting = waiting_for_files(situation)
    return blame_for_file(situation, waiting, "filesystem_wait", "") if waiting else None


RULE = Rule(cause="filesystem_wait", needs=("kernel",), find=find)
