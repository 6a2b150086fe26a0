"""Will the ranks start and find each other, on real sockets, scripts and ledgers."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor.launch_checks import (
    expect,
    master_port,
    script_parses,
    time_left,
    trainers_strategy,
)
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import Run
from lightning_hangcheck.model.case import PhaseTime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.doctor.check import Finding


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_port_that_is_taken_fails_and_names_who_has_it(taken_port: int) -> None:
    run = subject("python a.py", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(taken_port))
    (check,) = master_port(run)
    assert check.status == "failed"
    assert f"pid {os.getpid()}" in check.sentence


def test_a_free_port_is_fine(free_port: int) -> None:
    run = subject("python a.py", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port))
    assert [check.status for check in master_port(run)] == ["ok"]


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
    (missing,), (elsewhere,) = script_parses(run), script_parses(step)
    assert (missing.status, elsewhere.status) == ("failed", "warning")
    assert f"{script} is not there" in missing.sentence
    script.write_text("x = 1\ndef broken(\n")
    (broken,) = script_parses(run)
    assert broken.status == "failed"
    assert f"{script}:2 cannot be parsed" in broken.sentence
    script.write_text("x = 1\n")
    assert [check.status for check in script_parses(run)] == ["ok"]
    script.write_text("#" * 2**20)
    assert [check.status for check in script_parses(run)] == ["warning"]
    script.unlink()
    script.mkdir()
    assert [check.status for check in script_parses(run)] == ["warning"]
    assert trainers_strategy(run) == ()


TRAIN = "torchrun --nproc_per_node=2 train.py --lr 1e-4"
AT = "2026-11-20T10:00:00.000Z"


def run(command: str, duration_s: float, verdict: str = "finished", loading_s: float = 0.0) -> Run:
    """A run of two ranks, as the ledger has it; each loaded its model for so long."""
    return Run(
        id="1",
        at=AT,
        run_id="20261120T100000-aaaa",
        command=command,
        started_at=AT,
        duration_s=duration_s,
        ranks=2,
        verdict=verdict,
        exit_code=0 if verdict == "finished" else 1,
        spent=(PhaseTime("model_load", 2 * loading_s), PhaseTime("training_step", 5.0)),
    )


def _seconds(command: str, *runs: object) -> float | None:
    found = expect(command.split(), runs)  # type: ignore[arg-type]
    return None if found is None else found[1]


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ("--max_steps 100", "--max_steps 5400"),
        ("--max_steps=100", "--max_steps 5400"),
        ("--trainer.max_epochs=1", "--trainer.max_epochs=54"),
        ("trainer.max_steps=100", "trainer.max_steps=5400"),
        ("--num-train-epochs 1", "--num-train-epochs 54"),
    ],
)
def test_a_shorter_run_tells_the_pace(known: str, wanted: str) -> None:
    assert _seconds(f"{TRAIN} {wanted}", run(f"{TRAIN} {known}", 600.0)) == 54 * 600.0


def test_what_comes_once_is_not_multiplied() -> None:
    short = run(f"{TRAIN} --max_steps 10", 160.0, loading_s=60.0)
    assert _seconds(f"{TRAIN} --max_steps 100", short) == 60.0 + 10 * 100.0


def test_a_length_that_only_one_of_them_says_tells_nothing() -> None:
    assert _seconds(f"{TRAIN} --max_steps 100", run(TRAIN, 600.0)) is None
    assert _seconds(TRAIN, run(f"{TRAIN} --max_steps 100", 600.0)) is None


NOW = 1_800_000_000.0
HUNDRED = "python a.py --max_steps 100"


@pytest.mark.parametrize(("left", "status"), [(300, "warning"), (7200, "ok"), (-5, "warning")])
def test_little_time_is_a_warning(left: int, status: str) -> None:
    run = subject("python a.py", SLURM_JOB_END_TIME=str(int(NOW) + left), SLURM_JOB_ID="7")
    (check,) = time_left(run, now=NOW)
    assert check.status == status
    assert ("JobId=7" in check.remedy) == (status == "warning")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Of several runs the newest of 100 steps that was done took ten minutes."""
    file = tmp_path / "ledger.jsonl"
    runs = (run(HUNDRED, 900.0), run(HUNDRED, 600.0), run("a 'b", 1.0))
    for one in (*runs, run("python b.py", 1.0), run(HUNDRED, 9.0, "crashed")):
        ledger_file.append(file, one)
    return file


@pytest.mark.parametrize(("steps", "status"), [(100, "ok"), (5400, "warning")])
def test_the_pace_of_an_earlier_run_is_set_against_the_time(
    ledger: Path, steps: int, status: str
) -> None:
    command = f"python a.py --max_steps {steps}"
    run_ = subject(
        command, SLURM_JOB_END_TIME=str(int(NOW) + 6 * 3600), HANGCHECK_LEDGER=str(ledger)
    )
    (check,) = time_left(run_, now=NOW)
    assert check.status == status
    if status == "warning":
        assert "this run takes 9 h 00 min, but SLURM ends this job in 6 h 00 min" in check.sentence
        assert "--time=10:48:00" in check.remedy
