"""Loops, saves and Trainers of scripts that never heard of us."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from hooks.launching import (
    PACKAGE,
    as_rank,
    as_script,
    carried_journals,
    page_of,
    run_program,
)
from long_tests import WHEN_ASKED_FOR

from lightning_hangcheck.rundir import read_journal

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 2
SAID = {
    "unaware_fabric.py": [
        "CHECKPOINT 1: Script started", "Fabric constructor",
        "CHECKPOINT 8: Accelerator configured", "Fabric.launch", "Fabric.setup",
        "DataLoader constructor", "Fabric.setup_dataloaders", "first batch of a DataLoader",
        "Fabric.barrier", "Fabric.save of a checkpoint", "Fabric.load of a checkpoint",
    ],
    "unaware_huggingface.py": [
        "CHECKPOINT 1: Script started", "Trainer constructor", "Accelerator constructor",
        "CHECKPOINT 8: Accelerator configured", "CHECKPOINT 11: Trainer ready (prime suspect)",
        "Trainer.train", "DataLoader constructor", "first batch of a DataLoader",
        "Trainer.save_checkpoint", "CHECKPOINT 12: Training finished", "Trainer.evaluate",
    ],
}  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize(
    "name", [pytest.param("unaware_fabric.py", marks=WHEN_ASKED_FOR), "unaware_huggingface.py"]
)
def test_a_framework_is_seen_to_its_end(name: str, tmp_path: Path) -> None:
    watched = run_program(name, tmp_path, *as_script(tmp_path))
    assert watched[0] == 0, watched[2]
    assert watched[1].splitlines()[-1] == f"{STEPS} steps"
    lines = re.findall(r"\] (?:About to call (.+)\.\.\.|(CHECKPOINT .+))", watched[2])
    assert list(dict.fromkeys(call or checkpoint for call, checkpoint in lines)) == SAID[name]
    assert watched[2].count("Trainer constructor returned") <= 1
    assert page_of(tmp_path).step == STEPS, "what wraps an optimizer makes no second step of one"
    (journal,) = carried_journals(tmp_path)
    entries, _ = read_journal(journal)
    assert "is no longer watched" not in watched[2]
    assert "is switched off" not in watched[2]
    assert entries[-1]["kind"] == "finished"
    assert [entry["kind"] for entry in entries].count("saved") == 1


@pytest.mark.real
@WHEN_ASKED_FOR
def test_what_hugging_faces_trainer_goes_on_from_is_said_with_what_is_missing(
    tmp_path: Path,
) -> None:
    watched, python_path = as_script(tmp_path)
    ours = {**watched, "RESUMES": "1"}
    code, out, errors = run_program("unaware_huggingface.py", tmp_path, ours, python_path)
    assert code == 0, errors
    assert out.splitlines()[-1] == "4 steps"
    (line,) = re.findall(r"training goes on from .*", errors)
    told = f"{tmp_path}/out/checkpoint-2: step 2, epoch 1, written "
    assert line.startswith(f"training goes on from {told}"), line
    assert line.endswith("; it holds no optimizer state: what it lacks starts anew")
    (journal,) = carried_journals(tmp_path)
    (resumed,) = [one for one in read_journal(journal)[0] if one["kind"] == "resumed"]
    assert (resumed["step"], resumed["lacks"]) == (2, ["optimizer state"])


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
@pytest.mark.parametrize(
    ("loop", "step", "least_beats"),
    [
        ("plain", LOOP_STEPS, LOOP_STEPS),
        ("adversaries", LOOP_STEPS, LOOP_STEPS),
        # the first step of the next optimizer joins the last of the one before
        ("stages", LOOP_STEPS - 1, LOOP_STEPS),
        # a script that beats itself has its own beats and our steps
        ("by_hand", LOOP_STEPS, LOOP_STEPS),
    ],
)
def test_a_loop_has_steps_and_beats(loop: str, step: int, least_beats: int, tmp_path: Path) -> None:
    watched, python_path = as_script(tmp_path)
    code, _, errors = run_program("stepping.py", tmp_path, {**watched, "LOOP": loop}, python_path)
    assert code == 0, errors
    beat = page_of(tmp_path)
    assert beat.step == step
    assert beat.beats >= least_beats
    assert loop == "adversaries" or beat.beats == LOOP_STEPS


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


@pytest.mark.real
@WHEN_ASKED_FOR
def test_weights_alone_are_said_once_at_the_second_step_that_saves(tmp_path: Path) -> None:
    errors, entries = saved(tmp_path, "weights")
    (line,) = re.findall(r"the checkpoints saved so far .*", errors)
    assert line == f"{LACKING}: save optimizer.state_dict() and the step, too"
    kinds = [one["kind"] for one in entries if one["kind"] in ("saved", "saves_lack")]
    assert kinds == ["saved", "saved", "saved", "saves_lack", "saved"]


@pytest.mark.real
@WHEN_ASKED_FOR
@pytest.mark.parametrize(("how", "at"), [("apart", [1] * 4 + [2] * 4), ("sharded", [1, 2])])
def test_parts_in_files_of_their_own_are_not_missed(
    how: str, at: list[int], tmp_path: Path
) -> None:
    """A sharded checkpoint is one save."""
    errors, entries = saved(tmp_path, how)
    assert "saved so far" not in errors
    assert [one["step"] for one in entries if one["kind"] == "saved"] == at
