"""What all checkpoints of a training lack is said once, and of those that lack nothing, nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hooks.zero_code.injecting import as_rank, carried_journals, run_program
from long_tests import WHEN_ASKED_FOR

from lightning_hangcheck.rundir import read_journal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
LACKING = (
    "the checkpoints saved so far hold no optimizer state (its moments start at zero) and no "
    "scheduler (the learning rate starts anew) and no step or epoch (the loop starts at its first)"
)


def saved(tmp_path: Path, how: str) -> tuple[str, list[dict[str, object]]]:
    """What the program said, and the lines of its journal."""
    watched, python_path = as_rank(tmp_path)
    ours = {**watched, "SAVES": how}
    code, _, errors = run_program("saving_plainly.py", tmp_path, ours, python_path)
    assert code == 0, errors
    assert "is no longer watched" not in errors
    (journal,) = carried_journals(tmp_path)
    return errors, list(read_journal(journal)[0])


@WHEN_ASKED_FOR
def test_weights_alone_are_said_once_at_the_second_step_that_saves(tmp_path: Path) -> None:
    errors, entries = saved(tmp_path, "weights")
    (line,) = re.findall(r"the checkpoints saved so far .*", errors)
    assert line == f"{LACKING}: save optimizer.state_dict() and the step, too"
    kinds = [one["kind"] for one in entries if one["kind"] in ("saved", "saves_lack")]
    assert kinds == ["saved", "saved", "saved", "saves_lack", "saved"]


@WHEN_ASKED_FOR
def test_parts_in_files_of_their_own_are_not_missed(tmp_path: Path) -> None:
    errors, entries = saved(tmp_path, "apart")
    assert "saved so far" not in errors
    assert [one["kind"] for one in entries].count("saved") == 8


@WHEN_ASKED_FOR
def test_a_sharded_checkpoint_is_a_save_and_counts_once(tmp_path: Path) -> None:
    _, entries = saved(tmp_path, "sharded")
    assert [(one["kind"], one["step"]) for one in entries if one["kind"] == "saved"] == [
        ("saved", 1),
        ("saved", 2),
    ]
