"""What a script's source says: whether it is there, and which strategy it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor.launching import trainers_strategy

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.doctor.check import Finding

PL = "import lightning.pytorch as pl\n"


def named(
    folder: Path, text: str, arguments: str = "", launcher: str = "torchrun --nproc_per_node=2"
) -> list[Finding]:
    script = folder / "train.py"
    script.write_text(text)
    return list(trainers_strategy(subject(f"{launcher} {script} {arguments}")))


@pytest.mark.parametrize(
    "text",
    [
        'x = 1\nTrainer(devices=2, strategy="auto")\n',
        'x = 1\nsettings = dict(strategy="auto")\n',
        "import lightning as L\nL.Trainer(devices=2)\n",
        f"{PL}pl.Trainer()\n",
        "from pytorch_lightning import Trainer as T\nT()\n",
        "from lightning import pytorch as pl\npl.Trainer(devices=1)\n",
    ],
)
def test_auto_and_the_default_which_is_auto_are_named_with_their_line(
    tmp_path: Path, text: str
) -> None:
    (check,) = named(tmp_path, text)
    assert check.status == "warning"
    assert f"{tmp_path}/train.py:2 " in check.sentence
    assert 'strategy="ddp"' in check.remedy


@pytest.mark.parametrize(("given", "status"), [("auto", "warning"), ("ddp", "ok")])
def test_the_arguments_decide(tmp_path: Path, given: str, status: str) -> None:
    (check,) = named(tmp_path, f"{PL}pl.Trainer()\n", f"--strategy={given}")
    assert (check.status, given in check.sentence) == (status, True)


@pytest.mark.parametrize(
    ("strategy", "name"), [('"ddp"', "ddp"), ("DDPStrategy(timeout=x)", "DDPStrategy")]
)
def test_a_strategy_that_is_seen_is_fine_and_named(
    tmp_path: Path, strategy: str, name: str
) -> None:
    (check,) = named(tmp_path, f"{PL}pl.Trainer(strategy={strategy})\n")
    assert (check.status, check.sentence) == ("ok", f"{tmp_path}/train.py:2 asks for {name}")


@pytest.mark.parametrize(
    "text",
    [
        f"{PL}pl.Trainer(strategy=args.strategy)\n",
        f"{PL}pl.Trainer(**settings)\n",
        "from transformers import Trainer\nTrainer(model)\n",
        "from own.training import run\nrun()\n",
    ],
)
def test_what_only_running_it_would_tell_has_no_answer(tmp_path: Path, text: str) -> None:
    assert named(tmp_path, text) == []


def test_one_rank_may_be_guessed(tmp_path: Path) -> None:
    assert named(tmp_path, f"{PL}pl.Trainer()\n", launcher="torchrun --nproc_per_node=1") == []
    assert named(tmp_path, f"{PL}pl.Trainer(devices=1)\n", launcher="python") == []


def test_a_script_is_fine_only_where_it_was_parsed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    run, step = subject(f"python {script}"), subject(f"srun python {script}")
    (missing,), (elsewhere,) = script(run), script(step)
    assert (missing.status, elsewhere.status) == ("failed", "warning")
    assert f"{script} is not there" in missing.sentence
    script.write_text("x = 1\ndef broken(\n")
    (broken,) = script(run)
    assert broken.status == "failed"
    assert f"{script}:2 cannot be parsed" in broken.sentence
    script.write_text("x = 1\n")
    assert [check.status for check in script(run)] == ["ok"]
    script.write_text("#" * 2**20)
    assert [check.status for check in script(run)] == ["warning"]
    script.unlink()
    script.mkdir()
    assert [check.status for check in script(run)] == ["warning"]
    assert trainers_strategy(run) == ()
