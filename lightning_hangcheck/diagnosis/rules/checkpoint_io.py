"""checkpoint_io: a rank saves a checkpoint, and the file system does not let it go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.file_waiting import blame_for_file, waiting_for_files
from lightning_hangcheck.diagnosis.rules.finding import Rule

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.rules.finding import Finding, Situation


def find(situation: Situation) -> Finding | None:
    """Blame the suspects that save a checkpoint and are blocked in a file."""
    saving = [one for one in waiting_for_files(situation) if one.phase == "checkpoint_save"]
    if not saving:
        return None
    return blame_for_file(situation, saving, "checkpoint_io", "while saving a checkpoint")


RULE = Rule(cause="checkpoint_io", needs=("kernel",), find=find)
