"""What a rank that never heard of us leaves in its journal about its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hooks.launching import as_rank, carried_journals, run_script
from long_tests import WHEN_ASKED_FOR

from lightning_hangcheck.report.journals import read_journal

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "0123456789abcdef" * 2 + "01234567"
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
