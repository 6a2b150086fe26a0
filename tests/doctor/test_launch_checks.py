"""What doctor says of a launch: its command line and what launchers would make of it."""

from __future__ import annotations

import os
import shlex
import socket
from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor.launch_checks import (
    expect,
    master_port,
    program_starts,
    script_parses,
    time_left,
    trainers_strategy,
)
from lightning_hangcheck.doctor.launch_command import (
    C10D_PORT,
    DEFAULT_PORT,
    job_of_nodes,
    read_launch,
)
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import Run
from lightning_hangcheck.model.case import PhaseTime
from lightning_hangcheck.model.run import NodePlace

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


def test_a_command_that_cannot_be_started_fails() -> None:
    nothing, known, unknown = subject(""), subject("sh -c true"), subject("torch-run train.py")
    found = [[one.status for one in program_starts(run)] for run in (nothing, known, unknown)]
    assert found == [[], ["ok"], ["failed"]]
    assert "torch-run cannot be started" in program_starts(unknown)[0].sentence


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


COMMANDS = {
    "torchrun --nproc_per_node=2 train.py --devices 2": "torchrun 2 1 train.py",
    "torchrun --standalone --nproc-per-node 4 -m pkg.train --x 1": "torchrun 4 1 -",
    "/opt/bin/torchrun --nnodes=1:3 --nproc_per_node=2 train.py": "torchrun 2 3 train.py",
    "torchrun --nproc_per_node=gpu train.py": "torchrun - 1 train.py",
    "torchrun train.py": "torchrun 1 1 train.py",
    "torchrun --nproc_per_node=2": "torchrun 2 1 -",
    "python -m torch.distributed.run --nproc_per_node 2 a.py": "torchrun 2 1 a.py",
    "python3.11 -u -m torch.distributed.launch --nproc_per_node=2 a.py": "torchrun 2 1 a.py",
    "python -m accelerate.commands.launch --num_processes 8 a.py": "accelerate 8 1 a.py",
    "accelerate launch --multi_gpu --num_processes 8 --num_machines 2 a.py": "accelerate 4 2 a.py",
    "srun --ntasks=8 -N 2 python train.py": "slurm 4 2 train.py",
    "srun --ntasks-per-node=3 python -u train.py": "slurm 3 1 train.py",
    "srun -p test -n 2 python train.py": "slurm 2 1 train.py",
    "srun -m block -n 2 torchrun a.py": "slurm 2 1 a.py",
    "mpirun -np 4 python train.py": "mpi 4 1 train.py",
    "python -u train.py --epochs 3": "python - 1 train.py",
    "python -m pkg.train": "python - 1 -",
    "make train": "none - 1 -",
    "": "none - 1 -",
}

"""Launcher, ranks on a node, nodes, and the script; a dash where the words leave it open."""


@pytest.mark.parametrize(("line", "parts"), COMMANDS.items())
def test_a_command_tells_launcher_ranks_nodes_and_script(line: str, parts: str) -> None:
    launch = read_launch(line.split(), {})
    found = (launch.launcher, launch.local_ranks, launch.nodes, launch.script)
    assert ["-" if one is None else str(one) for one in found] == parts.split()


def test_srun_takes_from_the_allocation_what_it_is_not_told() -> None:
    launch = read_launch(["srun", "python", "a.py"], {"SLURM_NTASKS": "8", "SLURM_NNODES": "2"})
    assert (launch.local_ranks, launch.nodes, launch.ranks) == (4, 2, 8)


SLURM_TASK = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}

C10D, PET = "--rdzv-backend=c10d --rdzv-endpoint=", {"PET_NNODES": "2", "PET_NODE_RANK": "1"}


@pytest.mark.parametrize(
    ("options", "environment", "place"),
    [
        ("--nnodes=2 --node-rank=1 --master-addr=n0 --master-port=21", {}, (1, 2, "n0", 21)),
        ("--nnodes 1:4 --node_rank 3 --master_addr n0", {}, (3, 4, "n0", DEFAULT_PORT)),
        (f"--nnodes=2 {C10D}n0:29400", {"SLURM_NODEID": "0"}, (0, 2, "n0", 29400)),
        ("", PET | {"PET_MASTER_ADDR": "n0"}, (1, 2, "n0", DEFAULT_PORT)),
        ("--nnodes=2 --node-rank=0 --rdzv-backend=etcd", {}, (0, 2, "", 0)),
        (f"--nnodes=2 {C10D}n0", {}, None),
        ("--nnodes=2 --node-rank=2", {}, None),
        ("--nnodes=two --node-rank=0", {}, None),
        ("--nproc-per-node=8", {"SLURM_NODEID": "0"}, None),
    ],
)
def test_the_place_of_a_node_is_read_from_torchruns_options(
    options: str, environment: dict[str, str], place: tuple[int, int, str, int] | None
) -> None:
    command = ["torchrun", *shlex.split(options), "train.py", "--nnodes=7"]
    found = job_of_nodes(command, environment).place
    assert (found and (found.number, found.nnodes, found.host, found.port)) == place


def test_accelerate_starts_torchrun_and_has_names_of_its_own_for_its_options() -> None:
    options = "--num_machines 2 --machine_rank=1 --main_process_ip n0 --main_process_port 29501"
    command = ["accelerate", "launch", *shlex.split(options), "train.py"]
    assert job_of_nodes(command, {}).place == NodePlace(number=1, nnodes=2, host="n0", port=29501)
    assert job_of_nodes(["accelerate", "launch", "train.py"], {}).place is None


def test_a_task_of_slurm_that_runs_a_script_has_the_place_that_slurm_gave_it() -> None:
    task = SLURM_TASK | {"SLURM_NODEID": "1", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    place = job_of_nodes(["python", "train.py"], task).place
    assert place == NodePlace(number=1, nnodes=2, ranks=1, job="slurm-7-0")


def test_where_a_node_has_several_tasks_each_is_a_place_of_its_own() -> None:
    task = SLURM_TASK | {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    }
    place = job_of_nodes(["python", "train.py"], task).place
    assert place == NodePlace(number=3, nnodes=4, ranks=1, job="slurm-7-0", machines=2)


@pytest.mark.parametrize(
    ("options", "store"),
    [
        ("--nnodes=1:3 --rdzv-backend=c10d --rdzv-endpoint=n0:29511", ("n0", 29511)),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n0", ("n0", C10D_PORT)),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=[::1]:29511", ("::1", 29511)),
        ("--nnodes=2 --rdzv-backend=c10d", ("", 0)),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=/a --rdzv-conf=store_type=file", ("", 0)),
        ("--nnodes=2 --rdzv-backend=etcd-v2 --rdzv-endpoint=n0:2379", ("", 0)),
        ("--standalone", ("", 0)),
    ],
)  # fmt: skip
def test_the_store_where_torchruns_agents_meet(options: str, store: tuple[str, int]) -> None:
    assert job_of_nodes(["torchrun", *shlex.split(options), "train.py"], {}).store == store


@pytest.mark.parametrize(
    ("line", "prefix"),
    [
        ("torchrun --nproc_per_node=2 train.py", "torchrun --nproc_per_node=2"),
        ("torchrun --nproc_per_node 2 -m pkg", "torchrun --nproc_per_node 2"),
        (
            "python -m torch.distributed.run --nnodes 1 -m pkg",
            "python -m torch.distributed.run --nnodes 1",
        ),
        ("srun --ntasks 2 python train.py", "srun --ntasks 2"),
        ("srun -m block python train.py", "srun -m block"),
    ],
)
def test_the_prefix_starts_another_program_in_the_same_way(line: str, prefix: str) -> None:
    assert read_launch(line.split(), {}).prefix == tuple(prefix.split())
