"""Checks together: of which command, before a run, and what comes of one that fails."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import psutil
import pytest
from subjects import subject

from lightning_hangcheck.doctor.check import Check, Finding, failed, ok, warning
from lightning_hangcheck.doctor.every_run_checks import checks_before_run
from lightning_hangcheck.doctor.examination import checks_of, examine
from lightning_hangcheck.doctor.launch_checks import meeting_point

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.doctor.check import Subject

KEY = "hf_" + "a" * 30


def _check(finding: Finding | None) -> Check:
    return Check("group", "name", "looked", "matters", lambda _: finding)


WELL = _check(ok("fine", "good"))
WARNED = _check(warning(f"{KEY} was seen", "do: something", check="doubtful"))
MEND = "export " + "A_LONG_VARIABLE=some/long/value " * 8 + "mend=it"
FAILED = _check(failed("broken", MEND, check="bad"))


def test_the_exit_code_is_that_of_the_worst() -> None:
    assert examine(subject(), [WELL]).exit_code == 0
    assert examine(subject(), [WELL, WARNED]).exit_code == 1
    assert examine(subject(), [WARNED, FAILED, WELL]).exit_code == 2


def test_a_check_that_raises_is_a_warning_and_the_others_are_made() -> None:
    def breaks(_: Subject) -> tuple[Finding, ...]:
        raise KeyError("unforeseen")

    found = examine(subject(), [Check("group", "broken", "", "", breaks), WELL])
    assert [(one.check, one.status) for one in found.answers] == [
        ("broken", "warning"),
        ("good", "ok"),
    ]
    assert "unforeseen" in found.answers[0].found


def test_checks_that_never_answer_are_given_up_side_by_side() -> None:
    reader, writer = os.pipe()

    def blocks(_: Subject) -> tuple[Finding, ...]:
        os.read(reader, 1)
        return ()

    found = examine(subject(), [Check("group", "late", "", "", blocks, limit_s=0.2)] * 4)
    assert [one.status for one in found.answers] == ["warning"] * 4
    os.write(writer, b"four")


@pytest.mark.real
def test_every_check_is_made_and_says_something(tmp_path: Path) -> None:
    checks = checks_before_run(tmp_path / "run", {})
    names = [check.check for check in checks]
    assert names == ["stacks readable", "run folder", "shared memory usable", "debug settings"]
    assert all(check.found for check in checks)
    assert checks[0].status == "ok", checks[0]


CHECKS = {check.name: check for check in checks_of()}
UP = next(name for name, state in psutil.net_if_stats().items() if state.isup)
FOUR = "torchrun --nproc_per_node=4 a.py"
TWO_NODES = "torchrun --nnodes=2 --nproc_per_node=2"
PER_NODE = "SLURM_NTASKS_PER_NODE"
SAID = {
    "debug settings": [
        ("TORCH_DISTRIBUTED_DEBUG=detail", "warning", "crashes DDP on gloo"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "warning", "without end"),
        ("NCCL_ASYNC_ERROR_HANDLING=0", "warning", "without end"),
        ("TORCH_NCCL_BLOCKING_WAIT=1", "warning", "watchdog"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=100", "warning", "stall timeout of 300 s"),
        ("HANGCHECK_DISABLE=1", "warning", "switches everything off"),
        ("HANGCHECK_STALL_TIMEOUT=soon", "warning", "the defaults apply"),
        ("", "ok", "no setting is in the way"),
        ("TORCH_DISTRIBUTED_DEBUG=INFO", "ok", ""),
        ("HANGCHECK_IDLE_AFTR=60", "warning", "HANGCHECK_IDLE_AFTR is no setting"),
        ("HANGCHECK_SESSION=/dev/shm/x", "ok", ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=480", "ok", ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=never", "ok", ""),
    ],
    "tokenizers' threads": [
        ("TOKENIZERS_PARALLELISM=true", "warning", "may wait for threads"),
        ("TOKENIZERS_PARALLELISM=1", "warning", ""),
        ("TOKENIZERS_PARALLELISM=false", "ok", ""),
        ("", "ok", "not set"),
    ],
    "NCCL variables": [
        ("NCCL_BLOCKING_WAIT=1", "warning", "is the name before torch 2.2"),
        ("TORCH_NCCL_BLOCKING_WAIT=1", "ok", ""),
    ],
    "flight recorder": [
        ("TORCH_FR_BUFFER_SIZE=0", "warning", "off"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE=0", "warning", "off"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE=2000", "ok", ""),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT=false", "warning", "leaves no flight record"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT=1", "ok", ""),
        ("TORCH_FR_DUMP_TEMP_FILE=/no/such/rank_", "warning", "/no/such is not there"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/no/such/rank_", "warning", "/no/such is not there"),
        ("TORCH_FR_DUMP_TEMP_FILE=/tmp/rank_", "ok", ""),
    ],
    "launch variables": [
        ("RANK=2 WORLD_SIZE=2 python a.py", "failed", "RANK=2 cannot be with WORLD_SIZE=2"),
        ("RANK=x WORLD_SIZE=2 python a.py", "failed", "RANK='x' is not a whole number"),
        ("LOCAL_RANK=1 LOCAL_WORLD_SIZE=1 python a.py", "failed", "LOCAL_RANK=1"),
        ("RANK=0 WORLD_SIZE=2 python a.py", "failed", "waits for other ranks"),
        ("LOCAL_RANK=1 python a.py", "failed", "waits for other ranks"),
        ("python a.py", "ok", "no variable of a launcher"),
        (f"RANK=0 WORLD_SIZE=2 {FOUR}", "ok", ""),
        ("RANK=0 WORLD_SIZE=1 python a.py", "ok", ""),
        ("RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=a python a.py", "ok", ""),
    ],
    "SLURM tasks": [
        ("SLURM_NTASKS=2 python a.py", "failed", "starts one process"),
        ("SLURM_NTASKS=4 srun python a.py", "failed", f"without {PER_NODE}"),
        (f"SLURM_NTASKS=4 {PER_NODE}=4 srun python a.py --devices 2", "failed", "given 2 devices"),
        (f"SLURM_NTASKS=2 {PER_NODE}=2 srun python a.py", "ok", "as the command expects"),
        ("SLURM_NTASKS=1 python a.py", "ok", ""),
        ("SLURM_NTASKS=2 srun --ntasks-per-node=2 python a.py", "ok", ""),
        ("SLURM_NTASKS=2 SLURM_STEP_ID=0 python a.py", "ok", ""),
        ("SLURM_NTASKS=2 SLURM_JOB_NAME=bash python a.py", "", ""),
        ("python a.py", "", ""),
    ],
    "master address": [
        ("MASTER_ADDR=no-such-node.invalid python a.py", "failed", "does not resolve"),
        ("torchrun --nnodes=1 --master_addr=127.0.0.1 a.py", "ok", ""),
        ("torchrun --nnodes=2 --master_addr=127.0.0.1 a.py", "failed", "every node waits alone"),
    ],
    "network interface": [
        (f"NCCL_SOCKET_IFNAME={UP} {FOUR}", "ok", UP),
        (f"NCCL_SOCKET_IFNAME={UP[:2]} {FOUR}", "ok", ""),
        (f"NCCL_SOCKET_IFNAME=={UP} {FOUR}", "ok", ""),
        (f"NCCL_SOCKET_IFNAME=^no-such {FOUR}", "ok", ""),
        (f"NCCL_SOCKET_IFNAME=other,{UP} {FOUR}", "ok", ""),
        (f"NCCL_SOCKET_IFNAME=ib77 {FOUR}", "failed", "names no interface"),
        (f"NCCL_SOCKET_IFNAME=={UP}x {FOUR}", "failed", "names no interface"),
        (f"GLOO_SOCKET_IFNAME={UP},ib77 {FOUR}", "failed", "names no interface"),
        (f"GLOO_SOCKET_IFNAME=lo {FOUR}", "ok", ""),
        (f"GLOO_SOCKET_IFNAME=lo {TWO_NODES} a.py", "failed", "is loopback"),
        (f"NCCL_SOCKET_IFNAME=lo {TWO_NODES} a.py", "failed", "is loopback"),
    ],
}

NOT_NAMED = (
    *("needed files", "files belong together", "model's files", "model's memory", "checkpoints"),
    *("rclone remotes", "master address", "master port", "time left"),
    "ranks start",
)
SAID |= {name: [*SAID.get(name, ()), ("python train.py", "", "")] for name in NOT_NAMED}
"""What a run does not name is not asked about."""
MADE = [(name, *row) for name, rows in SAID.items() for row in rows]


@pytest.mark.parametrize(("name", "line", "status", "said"), MADE)
def test_a_check_says_of_a_command_line(name: str, line: str, status: str, said: str) -> None:
    found = CHECKS[name](_typed(line))
    assert [one.status for one in found] == [status] * bool(status)
    for one in found:
        assert said in one.found
        assert bool(one.remedy) == (status != "ok")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"OMP_NUM_THREADS=16 {FOUR}", "warning"),
        (FOUR, "ok"),
        (f"OMP_NUM_THREADS=2 {FOUR}", "ok"),
        ("mpirun -np 4 python a.py", "warning"),
        ("OMP_NUM_THREADS=16 python a.py", "ok"),
    ],
)
def test_threads_of_all_ranks_count(line: str, status: str) -> None:
    (check,) = CHECKS["computing threads"](_typed(line), processors=8)
    assert check.status == status
    assert check.remedy == ("export OMP_NUM_THREADS=2" if status == "warning" else "")


@pytest.mark.parametrize(
    ("command", "point"),
    [
        ("torchrun --nproc_per_node=2 a.py", None),
        (f"{TWO_NODES} a.py", ("127.0.0.1", 29500)),
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
def test_where_ranks_meet_options_win_over_variables(
    command: str, point: tuple[str, int] | None
) -> None:
    found = meeting_point(subject(command, MASTER_ADDR="from-variable", MASTER_PORT="77"))
    assert (found and found[:2]) == point


def _typed(line: str) -> object:
    variables, command = {}, line
    while found := re.match(r"([A-Z_]+)=(\S*) ?", command):
        variables[found[1]], command = found[2], command[found.end() :]
    return subject(command, **variables)
