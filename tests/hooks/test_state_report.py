"""What a rank says: of its surroundings, in its journal, and of the checkpoint it goes on from."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hooks.launching import as_rank, carried_journals, run_script
from long_tests import WHEN_ASKED_FOR
from processes import run_python
from transformers import TrainerState

from lightning_hangcheck.hooks.callbacks import tell_of_huggingface, tell_of_lightning
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.report.journals import read_journal

if TYPE_CHECKING:
    import pytest

SECRET = "0123456789abcdef" * 2 + "01234567"
LINE = re.compile(r"^\[[\d:.]+\]\[\+[\d.]+s\]\[R1/2\]\[LR1\]\[PID:\d+\] state(.*)$", re.MULTILINE)


def _said(code: str, **environment: str) -> tuple[list[str], list[str]]:
    """What a rank says that runs this code, behind the word ``state``, and its variables."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    with tempfile.TemporaryDirectory() as folder:
        words = ("-m", "lightning_hangcheck", "run", "--run-dir", f"{folder}/run", "--")
        program = (sys.executable, "-c", f"import lightning_hangcheck as hc\n{code}")
        ran = run_python(*words, *program, environment={**kept, **ranks, **environment})
        assert ran.returncode == 0, ran.stderr
        journals = [path.read_text() for path in Path(folder, "run", "ranks").glob("*.jsonl")]
    assert "Traceback" not in ran.stderr
    assert SECRET not in ran.stderr
    assert SECRET not in "".join(journals)
    entries = [json.loads(line) for text in journals for line in text.splitlines()]
    told = [one["variables"] for one in entries if one["kind"] == "environment"]
    return LINE.findall(ran.stderr), [name for variables in told for name in variables]


def test_before_torch_is_imported_it_says_so_imports_nothing_and_hides_secrets() -> None:
    """Of our own variables only options are told."""
    lines, variables = _said(
        "hc.report_state('at the start')\nimport sys\nassert 'torch' not in sys.modules",
        WANDB_API_KEY=SECRET,
        HANGCHECK_STALL_TIMEOUT="600",
    )
    (line,) = lines
    assert line.startswith(" at the start: versions: python 3.")
    assert "lightning_hangcheck " in line
    assert "CUDA: not known yet, torch is not imported" in line
    assert "process group: not initialized" in line
    assert f"{len(variables)} variables of the environment: in the journal" in line
    told = {"RANK=1", "MASTER_ADDR is not set", "WANDB_API_KEY=[redacted]"}
    assert told <= set(variables)
    ours = {one for one in variables if one.startswith("HANGCHECK_")}
    assert "HANGCHECK_STALL_TIMEOUT=600.0" in ours
    assert not any(one.startswith("HANGCHECK_SESSION") for one in ours)


def test_a_torch_that_refuses_to_answer_is_said_and_costs_nothing_else() -> None:
    (line,), _ = _said(
        "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\nhc.report_state('x')"
    )
    assert "; CUDA: unknown (AttributeError(" in line
    assert "; process group: not initialized; " in line


def test_disabled_it_says_nothing() -> None:
    assert _said("hc.report_state('x')", HANGCHECK_DISABLE="1") == ([], [])


# What a rank that never heard of us leaves in its journal about its start.

LOOP = """
import torch
layer = torch.nn.Linear(1, 1)
optimizers = [torch.optim.SGD([parameter], 0.1) for parameter in layer.parameters()]
for _ in range(3):
    layer(torch.ones(1, 1)).backward()
    for optimizer in optimizers:
        optimizer.step()
"""
COST = """
import time
from lightning_hangcheck.hooks.state_report import tell_start
begun = time.thread_time()
tell_start.__wrapped__()
print(time.thread_time() - begun)
"""


def states(tmp_path: Path, code: str, **environment: str) -> tuple[list[dict[str, Any]], str]:
    """What was told of the start, and what the script printed."""
    script = tmp_path / "train.py"
    script.write_text(code)
    watched, python_path = as_rank(tmp_path)
    code_, output, errors = run_script(script, {**watched, **environment}, python_path)
    assert code_ == 0, errors
    assert "STATE" not in errors
    (journal,) = carried_journals(tmp_path)
    return [one["facts"] for one in read_journal(journal)[0] if one["kind"] == "state"], output


def test_the_first_step_of_a_loop_tells_it_once_quickly_and_without_secrets(tmp_path: Path) -> None:
    (facts, _), took = states(tmp_path, LOOP + COST, WANDB_API_KEY=SECRET)
    assert facts["process group"] == "not initialized"
    assert facts["CUDA"]
    assert "torch 2" in facts["versions"]
    assert (facts["RANK"], facts["WANDB_API_KEY"]) == ("0", "[redacted]")
    assert float(took) < 0.3, "of processor time; 30 ms on an idle machine"


@WHEN_ASKED_FOR
def test_nothing_is_told_where_it_is_off(tmp_path: Path) -> None:
    assert states(tmp_path, LOOP, HANGCHECK_START_REPORT="off")[0] == []


# What is said of a checkpoint that training goes on from, and what of it is missing.

STATE = TrainerState(global_step=40, epoch=1.5)


def test_a_folder_of_hugging_face_is_told_with_what_it_lacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.safetensors", "trainer_state.json"):
        (tmp_path / name).touch()
    tell_of_huggingface(current(), str(tmp_path), STATE)
    said = capfd.readouterr().err
    assert f"goes on from {tmp_path}: step 40, epoch 1.5, written " in said
    assert said.endswith(
        "; it holds no optimizer state and no scheduler: what it lacks starts anew\n"
    )
    for name in ("optimizer.pt", "scheduler.pt"):
        (tmp_path / name).touch()
    tell_of_huggingface(current(), str(tmp_path), STATE)
    assert "holds no" not in capfd.readouterr().err


def test_a_folder_that_is_gone_makes_nothing_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tell_of_huggingface(current(), str(tmp_path / "gone"), STATE)
    assert capfd.readouterr().err.endswith("gone: step 40, epoch 1.5\n")


def test_a_secret_in_an_address_is_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    tell_of_lightning(current(), "https://ada:hunter2@models.org/last.ckpt", {})
    said = capfd.readouterr().err
    assert "models.org/last.ckpt: nothing is known of it" in said
    assert "hunter2" not in said
