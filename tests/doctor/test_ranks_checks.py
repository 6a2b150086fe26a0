"""Ranks really started by torchrun, and what is said of a trial by what they said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import psutil
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, end, free_port, is_alive, until
from subjects import subject

from lightning_hangcheck.doctor.launch_command import read_launch
from lightning_hangcheck.doctor.ranks_checks import (
    PROGRAM,
    Limits,
    Note,
    Trial,
    judge_trial,
    ranks_start,
    trial_command,
    try_ranks,
)

TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node=2")


def _try(words: tuple[str, ...], limits: Limits | None = None, **variables: str) -> Trial:
    command = trial_command(read_launch(words, {}))
    assert command is not None
    return try_ranks(command, {**os.environ, **variables}, limits)


@pytest.mark.real
def test_two_ranks_meet_add_and_are_timed() -> None:
    patient = Limits(start_s=PATIENCE_S, step_s=PATIENCE_S)
    trial = _try((*TORCHRUN, "train.py", "--epochs", "3"), patient)
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
    assert "cannot be started" in checks[0].sentence


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "torchrun --no-python --nproc_per_node=2 run.sh",
            f"torchrun --nproc_per_node=2 {PROGRAM}",
        ),
        ("srun -n 2 python3 train.py", f"srun -n 2 python3 {PROGRAM}"),
        (
            "srun -N 2 torchrun --nnodes=2 --nproc_per_node=4 train.py",
            f"srun -N 2 torchrun --nnodes=2 --nproc_per_node=4 {PROGRAM}",
        ),
        (
            "accelerate launch --num_processes 2 train.py",
            f"accelerate launch --num_processes 2 {PROGRAM}",
        ),
    ],
)
def test_the_program_takes_the_place_of_the_users(line: str, command: str) -> None:
    assert trial_command(read_launch(line.split(), {})) == tuple(command.split())


STEPS = ("rendezvous", "barrier", "all_reduce")


def _start(rank: int, world_size: int = 2) -> Note:
    return Note("start", rank, world_size=world_size, host="here")


def _begin(rank: int, step: str, backend: str = "gloo") -> Note:
    return Note("begin", rank, step, backend)


def _done(rank: int, step: str, total: float = 3.0, backend: str = "gloo") -> Note:
    sums = (total, total) if step == "all_reduce" else None
    timed = step.startswith("pair")
    return Note(
        "done",
        rank,
        step,
        backend,
        sums=sums,
        round_trip_s=0.001 * timed,
        bytes_per_s=1e9 * timed,
    )


def _through(rank: int, *steps: str) -> list[Note]:
    return [note for step in steps for note in (_begin(rank, step), _done(rank, step))]


WELL = Trial(
    notes=(
        _start(0),
        _start(1),
        *_through(0, *STEPS, "pair 0-1"),
        *_through(1, *STEPS, "pair 0-1"),
    )
)


def test_a_wrong_sum_fails_and_names_the_rank() -> None:
    notes = [
        one for one in WELL.notes if (one.rank, one.did, one.step) != (1, "done", "all_reduce")
    ]
    checks = [*judge_trial(Trial(notes=[*notes, _done(1, "all_reduce", total=2.0)]))]
    (failed,) = [check for check in checks if check.status == "failed"]
    assert failed.check == "all_reduce (gloo)"
    assert failed.sentence.startswith("rank 1 got (2.0, 2.0), not 3")


def test_the_step_in_which_ranks_hang_is_named_and_who_has_not_come() -> None:
    notes = (_start(0), _start(1), *_through(0, "rendezvous"), *_through(1, "rendezvous"))
    trial = Trial(notes=[*notes, _begin(0, "barrier")], ended="silent", waited_s=15.0)
    *_, last = judge_trial(trial)
    assert last.status == "failed"
    assert last.sentence == (
        "rank 0 hangs in barrier (gloo), rank 1 has not come there "
        "(given up after 15 s without news)"
    )
    assert "GLOO_SOCKET_IFNAME" in last.remedy


def test_a_rank_that_never_starts_is_named() -> None:
    (check,) = judge_trial(Trial(notes=(_start(0, 3), _start(2, 3)), ended="silent", waited_s=60.0))
    assert check.status == "failed"
    assert check.sentence.startswith("rank 1 never started; 2 ranks of 3")


def test_a_complaint_is_quoted_without_what_torch_puts_in_front() -> None:
    words = "Traceback ...\n[rank1]: RuntimeError: Connection refused by peer\nmore\n"
    notes = (_start(0), _start(1), _begin(0, "rendezvous"), _begin(1, "rendezvous"))
    *_, last = judge_trial(Trial(notes=notes, exit_code=1, last_words=words))
    assert last.sentence.endswith(
        "failed in rendezvous (gloo): RuntimeError: Connection refused by peer"
    )


def test_a_launcher_that_sends_output_elsewhere_is_a_warning() -> None:
    (check,) = judge_trial(Trial(notes=(), exit_code=0))
    assert check.status == "warning"
    (check,) = judge_trial(Trial(notes=(), exit_code=1))
    assert check.status == "failed"


def test_fewer_gpus_than_ranks_is_said() -> None:
    *_, last = judge_trial(msgspec.structs.replace(WELL, notes=(*WELL.notes, Note("no device", 1))))
    assert (last.check, last.status) == ("nccl", "warning")


@WHEN_ASKED_FOR
@pytest.mark.real
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_doctor_ends_what_it_started(how: signal.Signals) -> None:
    # the second node never comes, so the launcher waits
    launcher = ["torchrun", "--nnodes=2", "--node_rank=0", f"--master_port={free_port()}"]
    doctor = subprocess.Popen(
        [sys.executable, "-m", "lightning_hangcheck", "doctor", "--only", "ranks", "--", *launcher],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "MASTER_ADDR": "127.0.0.1"},
    )
    try:
        started = until(
            lambda: psutil.Process(doctor.pid).children(recursive=True), "the launcher to start"
        )
        os.kill(doctor.pid, how)
        doctor.wait(120)
        until(lambda: not any(map(is_alive, started)), "the launcher to end")
    finally:
        end(doctor)
