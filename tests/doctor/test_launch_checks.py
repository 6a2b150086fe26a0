"""What doctor says of a launch: its command line, and ranks really started by torchrun."""

from __future__ import annotations

import os
import shlex
import socket
from typing import TYPE_CHECKING

import pytest
from ledger.lines import run
from msgspec.structs import replace
from processes import PATIENCE_S
from subjects import subject

from lightning_hangcheck.doctor.launch_checks import (
    command_is_there,
    master_port,
    network_interface,
    time_left,
    trainers_strategy,
)
from lightning_hangcheck.doctor.launch_command import DEFAULT_PORT, job_of_nodes, read_launch
from lightning_hangcheck.doctor.ranks_checks import (
    PROGRAM,
    Note,
    Trial,
    judge_trial,
    ranks_start,
    trial_command,
    try_ranks,
)
from lightning_hangcheck.identity import NodePlace
from lightning_hangcheck.ledger import ledger_file

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.ledger.ledger_file import Run


def test_a_port_must_be_free_and_else_it_is_named_who_has_it() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        run = subject("python a.py", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        listener.listen(1)
        (taken,) = master_port(run)
    (free,) = master_port(run)
    assert (taken.status, free.status) == ("failed", "ok")
    assert f"pid {os.getpid()}" in taken.found


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (TimeoutError(), "failed", "192.0.2.1:29500 cannot be reached from here (no answer within"),
        (OSError(101, "Network is unreachable"), "failed", "from here (Network is unreachable)"),
        (ConnectionRefusedError(), "ok", "nobody listens at port 29500 yet"),
    ],
)
def test_a_remote_host_must_be_reached_whether_or_not_it_listens_yet(
    monkeypatch: pytest.MonkeyPatch, error: OSError, status: str, said: str
) -> None:
    def connect(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    (check,) = master_port(subject("python a.py", MASTER_ADDR="192.0.2.1", MASTER_PORT="29500"))
    assert (check.status, said in check.found) == (status, True), check.found
    assert check.remedy == ("nc -vz 192.0.2.1 29500" if status == "failed" else "")


@pytest.mark.parametrize(("nodes", "status"), [(2, "failed"), (1, "ok")])
def test_a_host_whose_own_name_is_loopback_fails_on_several_nodes(
    monkeypatch: pytest.MonkeyPatch, nodes: int, status: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    (check,) = network_interface(subject(f"torchrun --nnodes={nodes} --nproc_per_node=2 a.py"))
    assert check.status == status
    assert ("localhost resolves to a loopback address" in check.found) == (nodes == 2)
    assert check.remedy.startswith("export GLOO_SOCKET_IFNAME=") == (nodes == 2)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("no-such-program train.py", "no-such-program cannot be started: no such program, or"),
        ("python nowhere/train.py", "nowhere/train.py cannot be read (No such file or directory)"),
        ("python here.py --lr 1", "here.py is there"),
        ("python -m train", "python is there"),
    ],
)
def test_what_cannot_be_started_is_not_well(
    words: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    (check,) = command_is_there(subject(words))
    assert (check.status, found in check.found) == (
        "ok" if "is there" in found else "failed",
        True,
    ), check.found


PL, TWO = "import lightning.pytorch as pl\n", "torchrun --nproc_per_node=2"
STRATEGIES = [
    # "auto" and the default, which is auto
    (TWO, 'x = 1\nsettings = dict(strategy="auto")\n', "", "warning"),
    (TWO, f"{PL}pl.Trainer()\n", "", "warning"),
    # one that is named
    (TWO, f'{PL}pl.Trainer(strategy="ddp")\n', "", "ok"),
    # the arguments decide
    (TWO, f"{PL}pl.Trainer()\n", "--strategy=auto", "warning"),
    (TWO, f"{PL}pl.Trainer()\n", "--strategy=ddp", "ok"),
    # only running it would tell
    (TWO, f"{PL}pl.Trainer(strategy=args.strategy)\n", "", None),
    (TWO, "from transformers import Trainer\nTrainer(model)\n", "", None),
    (TWO, "from own.training import run\nrun()\n", "", None),
    # one rank
    ("torchrun --nproc_per_node=1", f"{PL}pl.Trainer()\n", "", None),
]


@pytest.mark.parametrize(("launcher", "text", "arguments", "status"), STRATEGIES)
def test_a_strategy_that_ranks_would_guess_is_named_with_its_line(
    tmp_path: Path, launcher: str, text: str, arguments: str, status: str | None
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    found = trainers_strategy(subject(f"{launcher} {script} {arguments}"))
    assert [check.status for check in found] == ([status] if status else [])
    for check in found if not arguments else ():
        assert f"{script}:2 " in check.found
        assert ('strategy="ddp"' in check.remedy) == (status == "warning")


def done(command: str, duration_s: float, **more: object) -> Run:
    return replace(run("20261120T100000-aaaa"), command=command, duration_s=duration_s, **more)


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
    runs = (done(HUNDRED, 900.0), done(HUNDRED, 600.0), done("a 'b", 1.0))
    for one in (*runs, done("python b.py", 1.0), done(HUNDRED, 9.0, verdict="crashed")):
        ledger_file.append(file, one)
    return file


@pytest.mark.parametrize(("left_s", "status"), [(6 * 3600, "ok"), (601, "ok"), (600, "warning")])
def test_an_earlier_run_of_the_command_is_set_against_the_time(
    ledger: Path, left_s: int, status: str
) -> None:
    run_ = subject(HUNDRED, SLURM_JOB_END_TIME=str(int(NOW) + left_s), HANGCHECK_LEDGER=str(ledger))
    (check,) = time_left(run_, now=NOW)
    assert check.status == status
    assert "of this command took 10 min 00 s" in check.found
    assert ("--time=0:12:00" in check.remedy) == (status == "warning")


COMMANDS = {
    "torchrun --nproc_per_node=2 train.py --devices 2": "torchrun 2 1 train.py",
    "torchrun --standalone --nproc-per-node 4 -m pkg.train --x 1": "torchrun 4 1 -",
    "/opt/bin/torchrun --nnodes=1:3 --nproc_per_node=2 train.py": "torchrun 2 3 train.py",
    "torchrun train.py": "torchrun 1 1 train.py",
    "python3.11 -u -m torch.distributed.launch --nproc_per_node=2 a.py": "torchrun 2 1 a.py",
    "accelerate launch --multi_gpu --num_processes 8 --num_machines 2 a.py": "accelerate 4 2 a.py",
    "srun --ntasks=8 -N 2 python train.py": "slurm 4 2 train.py",
    "srun -m block -n 2 torchrun a.py": "slurm 2 1 a.py",
    "mpirun -np 4 python train.py": "mpi 4 1 train.py",
    "python -u train.py --epochs 3": "python - 1 train.py",
    "make train": "none - 1 -",
    "": "none - 1 -",
}
"""Launcher, ranks on a node, nodes, and the script; a dash where the words leave it open."""


@pytest.mark.parametrize(("line", "parts"), COMMANDS.items())
def test_a_command_tells_launcher_ranks_nodes_and_script(line: str, parts: str) -> None:
    launch = read_launch(line.split(), {})
    found = (launch.launcher, launch.local_ranks, launch.nodes, launch.script)
    assert ["-" if one is None else str(one) for one in found] == parts.split()


SLURM_TASK = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
TWO_TASKS_A_NODE = {
    **SLURM_TASK,
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
C10D, PET = "--rdzv-backend=c10d --rdzv-endpoint=", {"PET_NNODES": "2", "PET_NODE_RANK": "1"}
STATIC = "--master-addr=n0 --master-port=21"
SECOND_TASK = NodePlace(number=1, nnodes=2, ranks=1, job="slurm-7-0")
OF_ACCELERATE = "--machine_rank=1 --main_process_ip n0 --main_process_port 29501"


def _at(number: int, nnodes: int, host: str = "n0", port: int = DEFAULT_PORT) -> NodePlace:
    return NodePlace(number=number, nnodes=nnodes, host=host, port=port)


@pytest.mark.parametrize(
    ("command", "environment", "place"),
    [
        (f"torchrun --nnodes=2 --node-rank=1 {STATIC}", {}, _at(1, 2, port=21)),
        (f"torchrun --nnodes=2 {C10D}n0:29400", {"SLURM_NODEID": "0"}, _at(0, 2, port=29400)),
        ("torchrun", PET | {"PET_MASTER_ADDR": "n0"}, _at(1, 2)),
        (f"torchrun --nnodes=2 {C10D}n0", {}, None),
        ("torchrun --nproc-per-node=8", {"SLURM_NODEID": "0"}, None),
        (f"accelerate launch --num_machines 2 {OF_ACCELERATE}", {}, _at(1, 2, port=29501)),
        ("python", SLURM_TASK, SECOND_TASK),
        # where a node has several tasks each is a place of its own
        ("python", TWO_TASKS_A_NODE, SECOND_TASK._replace(number=3, nnodes=4, machines=2)),
    ],
)  # fmt: skip
def test_the_place_of_a_node_is_read_from_its_launcher(
    command: str, environment: dict[str, str], place: NodePlace | None
) -> None:
    words = [*shlex.split(command), "train.py", "--nnodes=7"]
    assert job_of_nodes(words, environment).place == place


# Ranks really started by torchrun, and what is said of a trial by what they said.


def _try(words: tuple[str, ...]) -> Trial:
    command = trial_command(read_launch(words, {}))
    return try_ranks(command, os.environ, PATIENCE_S, PATIENCE_S)


@pytest.mark.real
def test_two_ranks_meet_add_and_exchange_data() -> None:
    trial = _try(("torchrun", "--standalone", "--nproc_per_node=2", "train.py", "--epochs", "3"))
    assert [(check.check, check.status) for check in judge_trial(trial)] == [
        ("ranks start", "ok"),
        ("rendezvous (gloo)", "ok"),
        ("barrier (gloo)", "ok"),
        ("all_reduce (gloo)", "ok"),
        ("pairs (gloo)", "ok"),
    ], trial


def test_a_launcher_that_is_not_there_fails() -> None:
    checks = ranks_start(subject("/no/such/torchrun --nproc_per_node=2"))
    assert [check.status for check in checks] == ["failed"]
    assert "cannot be started" in checks[0].found


@pytest.mark.parametrize(
    ("launch", "program"),
    [
        ("torchrun --nproc_per_node=2", "--no-python run.sh"),
        ("srun -m block python3", "train.py"),
        ("srun -N 2 torchrun --nnodes=2 --nproc_per_node=4", "train.py"),
        ("accelerate launch --num_processes 2", "train.py"),
    ],
)
def test_the_program_takes_the_place_of_the_users(launch: str, program: str) -> None:
    command = trial_command(read_launch(f"{launch} {program}".split(), {}))
    assert command == (*launch.split(), str(PROGRAM))


STEPS = ("rendezvous", "barrier", "all_reduce")


def _start(rank: int, world_size: int = 2) -> Note:
    return Note("start", rank, world_size=world_size, host="here")


def _begin(rank: int, step: str) -> Note:
    return Note("begin", rank, step, "gloo")


def _done(rank: int, step: str) -> Note:
    return Note("done", rank, step, "gloo", sums=(3.0, 3.0) if step == "all_reduce" else None)


def _through(*steps: str) -> list[Note]:
    both = [_start(0), _start(1)]
    return both + [say(rank, step) for step in steps for rank in (0, 1) for say in (_begin, _done)]


REFUSED = "Traceback ...\n[rank1]: RuntimeError: Connection refused by peer\nmore\n"


@pytest.mark.parametrize(
    ("trial", "check", "sentence"),
    [
        (
            Trial(notes=[*_through("rendezvous"), _begin(0, "barrier")], silent_s=15.0),
            "barrier (gloo)",
            "rank 0 hangs in barrier (gloo), rank 1 has not come there "
            "(given up after 15 s without news)",
        ),
        (
            Trial(notes=[_start(0, 3), _start(2, 3)], silent_s=60.0),
            "ranks start",
            "rank 1 never started; 2 ranks of 3 on 1 host (given up after 60 s without news)",
        ),
        (  # quoted without what torch puts in front
            Trial(
                notes=[_start(0), _start(1), _begin(0, "rendezvous"), _begin(1, "rendezvous")],
                exit_code=1,
                last_words=REFUSED,
            ),
            "rendezvous (gloo)",
            "rank 0-1 failed in rendezvous (gloo): RuntimeError: Connection refused by peer",
        ),
    ],
)
def test_where_ranks_fail_is_named_and_who_has_not_come(
    trial: Trial, check: str, sentence: str
) -> None:
    (failed,) = [one for one in judge_trial(trial) if one.status == "failed"]
    assert (failed.check, failed.found) == (check, sentence)
    assert failed.remedy


def test_what_could_not_be_tried_is_a_warning() -> None:
    (elsewhere,) = judge_trial(Trial(notes=[], exit_code=0))
    assert elsewhere.status == "warning"
    *_, fewer = judge_trial(Trial(notes=[*_through(*STEPS), Note("no device", 1)]))
    assert (fewer.check, fewer.status) == ("nccl", "warning")
