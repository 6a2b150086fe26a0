"""The reference script, run for real in each way that it can be launched."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import run_python
from watch.launched import LONGEST_RUN_S

if TYPE_CHECKING:
    import subprocess

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "train_reference.py"
LINE = re.compile(r"\[PID:(\d+)\] CHECKPOINT (\d+): (.*)$", re.MULTILINE)
CHECKPOINTS = [
    "Script started", "Args parsed", "Logs directory ready", "Tokenizer loaded", "Model created",
    "LLMModule ready", "DataModule ready", "Accelerator configured",
    "WandbLogger ready (prime suspect)", "MemoryLoggingCallback ready",
    "Trainer ready (prime suspect)", "Training finished",
]  # fmt: skip
ALL_TWELVE = list(enumerate(CHECKPOINTS, start=1))
SECRET = "0123456789abcdef" * 2 + "01234567"
STRATEGY = "ddp_find_unused_parameters_true"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2")


def _train(
    folder: Path, *words: str, launcher: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("WANDB")}
    environment |= {"WANDB_API_KEY": SECRET, "PYTHONWARNINGS": "ignore"}
    command = (*launcher, str(SCRIPT), "--batch_size", "4", *words)
    return run_python(*command, folder=folder, environment=environment, limit_s=LONGEST_RUN_S)


def _checkpoints(run: subprocess.CompletedProcess[str]) -> list[list[tuple[int, str]]]:
    """Checkpoints of each process, in the order of its lines."""
    passed: dict[str, list[tuple[int, str]]] = {}
    for pid, number, name in LINE.findall(run.stderr):
        passed.setdefault(pid, []).append((int(number), name))
    return list(passed.values())


@pytest.mark.real
def test_torchrun_passes_twelve_checkpoints_on_both_ranks(tmp_path: Path) -> None:
    words = ["--max_steps", "4", "--save_every", "2", "--strategy", STRATEGY]
    run = _train(tmp_path, *words, launcher=TORCHRUN)
    # not its exit code: gloo's threads may abort a rank that has done all its work (gloo.py)
    assert _checkpoints(run) == [ALL_TWELVE, ALL_TWELVE], run.stderr
    assert run.stderr.count(f"called with strategy={STRATEGY}") == 2
    for rank in (0, 1):
        said = rf"\[R{rank}/2\]\[LR{rank}\]\[PID:\d+\] state before the Trainer: .*backends: .*gloo"
        assert re.search(said, run.stderr)
    assert list((tmp_path / "logs").rglob("*step=4.ckpt"))
    for constructor in ("WandbLogger", "Trainer"):
        assert run.stderr.count(f"About to call {constructor} constructor...") >= 2
        assert run.stderr.count(f"{constructor} constructor returned (") >= 2


def test_unknown_fault_ends_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    run = _train(tmp_path, "--inject", "frozen@0")
    assert run.returncode == 2
    assert "'frozen@0' names no fault; use one of rank_stalled" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "logs").exists()
