"""Scripts that never heard of this package, under `hangcheck run`: what is said of them."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS
from watch.launched import run

if TYPE_CHECKING:
    from pathlib import Path

OFFLINE = {
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "HANGCHECK_CONSOLE": "all",
}
CHECKPOINTS = [
    "1: Script started",
    "4: Tokenizer loaded",
    "5: Model created",
    "9: WandbLogger ready (prime suspect)",
    "8: Accelerator configured",
    "11: Trainer ready (prime suspect)",
    "7: DataModule ready",
    "12: Training finished",
]
"""In the order of this script, whose numbers are those of the reference script."""
SECTIONS = [
    "tokenizer from_pretrained (AutoTokenizer)",
    "model from_pretrained (AutoModelForCausalLM)",
    "WandbLogger constructor",
    "Trainer constructor",
    "Trainer.fit",
    "wandb.init",
    "DataLoader constructor",
    "first batch of a DataLoader",
    "Trainer.save_checkpoint",
]

pytestmark = pytest.mark.real


def script(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", str(PROGRAMS / "unaware_training.py"), *arguments]


def said_of(errors: str, rank: int) -> list[str]:
    """What our lines say of the process that became this rank."""
    pid = re.search(rf"\[R{rank}/\d+\]\[LR{rank}\]\[PID:(\d+)\]", errors)
    assert pid is not None, errors
    return re.findall(rf"\[PID:{pid[1]}\] (.+)", errors)


def test_a_training_is_seen_from_its_start_to_its_end_and_is_not_changed(tmp_path: Path) -> None:
    ended = run(tmp_path, script("lightning.pytorch"), **OFFLINE)
    assert (ended.returncode, ended.stdout) == (3, "steps 8 vocabulary 1\n")
    said = said_of(ended.stderr, 0)
    prefix = "CHECKPOINT "
    assert [one.removeprefix(prefix) for one in said if prefix in one] == CHECKPOINTS
    assert re.search(r"\[R0/1\]\[LR0\]\[PID:\d+\] CHECKPOINT 11: Trainer ready", ended.stderr)
    begun = re.findall(r"About to call (.+)\.\.\.", "\n".join(said))
    assert list(dict.fromkeys(begun)) == SECTIONS
    for section in begun:
        assert sum(one.startswith(f"{section} returned (") for one in said) == begun.count(section)
