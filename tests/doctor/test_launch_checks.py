"""Will the ranks start and find each other, on real sockets, scripts and ledgers."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import psutil
import pytest
from doctor.runs import run
from subjects import subject

from lightning_hangcheck.doctor.launch_checks import (
    expect,
    launch_variables,
    master_address,
    master_port,
    meeting_point,
    network_interface,
    script_parses,
    slurm_tasks,
    time_left,
    trainers_strategy,
)
from lightning_hangcheck.ledger import ledger_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.doctor.check import Finding


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 cannot be with WORLD_SIZE=2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x' is not a whole number"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK=1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "waits for other ranks"),
        ({"LOCAL_RANK": "1"}, "waits for other ranks"),
    ],
)
def test_numbers_that_cannot_be_fail_with_the_variables_to_unset(
    variables: dict[str, str], named: str
) -> None:
    (check, *_) = launch_variables(subject("python train.py", **variables))
    assert check.status == "failed"
    assert named in check.sentence
    assert check.remedy.startswith("unset RANK")


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ("python train.py", {}),
        ("torchrun --nproc_per_node=2 train.py", {"RANK": "0", "WORLD_SIZE": "2"}),
        ("python train.py", {"RANK": "0", "WORLD_SIZE": "1"}),
        ("python train.py", {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a"}),
    ],
)
def test_what_the_launcher_sets_itself_is_no_problem(
    command: str, variables: dict[str, str]
) -> None:
    assert [one.status for one in launch_variables(subject(command, **variables))] == ["ok"]


@pytest.mark.parametrize(
    ("command", "variables", "remedy"),
    [
        ("python train.py", {"SLURM_NTASKS": "2"}, "srun python train.py"),
        ("srun python train.py", {"SLURM_NTASKS": "4"}, "#SBATCH --ntasks-per-node=4"),
        (
            "srun python train.py --devices 2",
            {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"},
            "#SBATCH --ntasks-per-node=2",
        ),
    ],
)
def test_tasks_that_nobody_starts_fail(
    command: str, variables: dict[str, str], remedy: str
) -> None:
    (check,) = slurm_tasks(subject(command, **variables))
    assert (check.status, check.remedy) == ("failed", remedy)


@pytest.mark.parametrize(
    ("command", "variables", "asked"),
    [
        ("srun python a.py", {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}, True),
        ("python a.py", {"SLURM_NTASKS": "1"}, True),
        ("srun --ntasks-per-node=2 python a.py", {"SLURM_NTASKS": "2"}, True),
        ("python a.py", {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, True),
        ("python a.py", {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "bash"}, False),
        ("python a.py", {}, False),
    ],
)
def test_tasks_that_agree_are_fine(command: str, variables: dict[str, str], *, asked: bool) -> None:
    checks = slurm_tasks(subject(command, **variables))
    assert [check.status for check in checks] == (["ok"] if asked else [])


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


@pytest.mark.parametrize(
    ("command", "point"),
    [
        ("torchrun --nproc_per_node=2 a.py", None),
        ("torchrun --nnodes=2 --nproc_per_node=2 a.py", ("127.0.0.1", 29500)),
        ("torchrun --nproc_per_node=2 --master_port=123 a.py", ("127.0.0.1", 123)),
        ("torchrun --rdzv_endpoint=node0:400 a.py", ("node0", 400)),
        ("torchrun --master_addr=node0 a.py", ("node0", 29500)),
        ("torchrun --rdzv_endpoint=node0 a.py", ("node0", 29400)),
        ("torchrun --rdzv_endpoint=localhost:0 a.py", ("localhost", None)),
        ("torchrun --rdzv_endpoint=[::1]:400 a.py", ("::1", 400)),
        ("torchrun --rdzv_endpoint=[fe80::2] a.py", ("fe80::2", 29400)),
        ("torchrun --rdzv_backend=c10d a.py", ("localhost", 29400)),
        ("torchrun --standalone a.py", None),
        ("python a.py", ("from-variable", 77)),
    ],
)
def test_options_win_over_variables(command: str, point: tuple[str, int] | None) -> None:
    found = meeting_point(subject(command, MASTER_ADDR="from-variable", MASTER_PORT="77"))
    assert (found and found[:2]) == point


def test_a_name_that_nobody_knows_fails() -> None:
    (check,) = master_address(subject("python a.py", MASTER_ADDR="no-such-node.invalid"))
    assert check.status == "failed"
    assert "does not resolve" in check.sentence


@pytest.mark.parametrize(("nodes", "status"), [("1", "ok"), ("2", "failed")])
def test_loopback_will_do_for_one_node_only_of_meeting_point(nodes: str, status: str) -> None:
    run = subject(f"torchrun --nnodes={nodes} --master_addr=127.0.0.1 a.py")
    (check,) = master_address(run)
    assert check.status == status


def test_a_port_that_is_taken_fails_and_names_who_has_it(taken_port: int) -> None:
    run = subject("python a.py", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(taken_port))
    (check,) = master_port(run)
    assert check.status == "failed"
    assert f"pid {os.getpid()}" in check.sentence


def test_a_free_port_is_fine(free_port: int) -> None:
    run = subject("python a.py", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port))
    assert [check.status for check in master_port(run)] == ["ok"]


UP = next(name for name, state in psutil.net_if_stats().items() if state.isup)


@pytest.mark.parametrize("chosen", [UP, UP[:2], f"={UP}", "^no-such", f"other,{UP}"])
def test_an_interface_that_is_up_is_fine(chosen: str) -> None:
    (check,) = network_interface(subject("torchrun a.py", NCCL_SOCKET_IFNAME=chosen))
    assert check.status == "ok"


@pytest.mark.parametrize(("nodes", "status"), [(2, "failed"), (1, "ok")])
@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_loopback_will_do_for_one_node_only_of_interfaces(
    variable: str, nodes: int, status: str
) -> None:
    command = f"torchrun --nnodes={nodes} --nproc_per_node=2 a.py"
    (check,) = network_interface(subject(command, **{variable: "lo"}))
    assert check.status == status


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_SOCKET_IFNAME": "ib77"},
        {"NCCL_SOCKET_IFNAME": f"={UP}x"},
        {"GLOO_SOCKET_IFNAME": "ib77"},
        {"GLOO_SOCKET_IFNAME": f"{UP},ib77"},
    ],
)
def test_an_interface_that_is_not_there_fails(variables: dict[str, str]) -> None:
    (check,) = network_interface(subject("torchrun a.py", **variables))
    assert check.status == "failed"
    assert check.remedy.startswith(f"export {next(iter(variables))}=")


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
