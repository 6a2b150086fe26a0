"""The strategy that a script asks for, read from its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor.launching.strategy import strategy_named

if TYPE_CHECKING:
    from pathlib import Path


def _script(folder: Path, text: str) -> Path:
    script = folder / "train.py"
    script.write_text(text)
    return script


def test_auto_is_named_with_its_line(tmp_path: Path) -> None:
    script = _script(tmp_path, 'x = 1\nTrainer(devices=2, strategy="auto")\n')
    (check,) = strategy_named(subject(f"torchrun --nproc_per_node=2 {script}"))
    assert check.status == "warning"
    assert f"{script}:2" in check.sentence
    assert 'strategy="ddp"' in check.remedy


def test_auto_among_the_arguments_is_named(tmp_path: Path) -> None:
    script = _script(tmp_path, "Trainer(strategy=args.strategy)\n")
    run = subject(f"torchrun --nproc_per_node=2 {script} --strategy=auto")
    assert [check.status for check in strategy_named(run)] == ["warning"]


@pytest.mark.parametrize("text", ['Trainer(strategy="ddp")\n', "Trainer()\n", "def broken(\n"])
def test_a_script_that_does_not_leave_it_open_is_fine(tmp_path: Path, text: str) -> None:
    script = _script(tmp_path, text)
    (check,) = strategy_named(subject(f"torchrun --nproc_per_node=2 {script}"))
    assert check.status == "ok"


def test_one_rank_may_be_guessed(tmp_path: Path) -> None:
    script = _script(tmp_path, 'Trainer(strategy="auto")\n')
    assert strategy_named(subject(f"torchrun --nproc_per_node=1 {script}")) == ()
