"""Loops, saves and Trainers of scripts that never heard of us."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from hooks.launching import PACKAGE, as_rank, as_script, carried_journals, page_of, run_program
from long_tests import WHEN_ASKED_FOR

from lightning_hangcheck.report.journals import read_journal

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 2
SAID = [
    "CHECKPOINT 1: Script started", "Trainer constructor", "Accelerator constructor",
    "CHECKPOINT 8: Accelerator configured", "CHECKPOINT 11: Trainer ready (prime suspect)",
    "Trainer.train", "DataLoader constructor", "first batch of a DataLoader",
    "Trainer.save_checkpoint", "CHECKPOINT 12: Training finished", "Trainer.evaluate",
]  # fmt: skip


@pytest.mark.real
def test_hugging_faces_trainer_is_seen_to_its_end(tmp_path: Path) -> None:
    watched = run_program("unaware_huggingface.py", tmp_path, *as_script(tmp_path))
    assert watched[0] == 0, watched[2]
    assert watched[1].splitlines()[-1] == f"{STEPS} steps"
    lines = re.findall(r"\] (?:About to call (.+)\.\.\.|(CHECKPOINT .+))", watched[2])
    assert list(dict.fromkeys(call or checkpoint for call, checkpoint in lines)) == SAID
    assert watched[2].count("Trainer constructor returned") <= 1
    assert page_of(tmp_path).step == STEPS, "what wraps an optimizer makes no second step of one"
    (journal,) = carried_journals(tmp_path)
    entries, _ = read_journal(journal)
    assert "is no longer watched" not in watched[2]
    assert "is switched off" not in watched[2]
    assert entries[-1]["kind"] == "finished"
    assert [entry["kind"] for entry in entries].count("saved") == 1


@pytest.mark.real
def test_a_lightning_trainers_callbacks_stay_as_the_user_made_them(tmp_path: Path) -> None:
    """Ours is called beside them: the page has the steps that it tells."""
    script = "unaware_callbacks.py"
    watched = run_program(script, tmp_path, *as_script(tmp_path))
    plain = run_program(script, tmp_path, {}, PACKAGE)
    assert watched[0] == plain[0] == 0, watched[2]
    assert json.loads(watched[1]) == json.loads(plain[1])
    assert json.loads(watched[1])["empty"]
    beat = page_of(tmp_path)
    assert (beat.step, beat.epoch, beat.phase) == (2, 1, "teardown")


LOOP_STEPS = 4


@WHEN_ASKED_FOR
@pytest.mark.real
@pytest.mark.parametrize("loop", ["plain", "adversaries"])
def test_a_loop_has_steps_and_beats(loop: str, tmp_path: Path) -> None:
    watched, python_path = as_script(tmp_path)
    code, _, errors = run_program("stepping.py", tmp_path, {**watched, "LOOP": loop}, python_path)
    assert code == 0, errors
    beat = page_of(tmp_path)
    assert beat.step == LOOP_STEPS
    assert beat.beats >= LOOP_STEPS
    assert loop == "adversaries" or beat.beats == LOOP_STEPS


@pytest.mark.real
@WHEN_ASKED_FOR
@pytest.mark.parametrize("how", ["weights", "apart"])
def test_weights_alone_are_said_once_and_parts_in_other_files_not_missed(
    how: str, tmp_path: Path
) -> None:
    watched, python_path = as_rank(tmp_path)
    ours = {**watched, "SAVES": how}
    code, _, errors = run_program("saving_plainly.py", tmp_path, ours, python_path)
    assert code == 0, errors
    lines = errors.count("the checkpoints saved so far hold no optimizer state")
    assert lines == (1 if how == "weights" else 0)
