"""Ranks really started by torchrun, and what is said of a trial by what they said."""

from __future__ import annotations

import os

import pytest
from processes import PATIENCE_S
from subjects import subject

from lightning_hangcheck.doctor.launch_command import read_launch
from lightning_hangcheck.doctor.ranks_checks import (
    PROGRAM,
    Note,
    Trial,
    judge_trial,
    ranks_start,
    trial_command,
    try_ranks,
)

TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node=2")


def _try(words: tuple[str, ...]) -> Trial:
    command = trial_command(read_launch(words, {}))
    assert command is not None
    return try_ranks(command, os.environ, PATIENCE_S, PATIENCE_S)


@pytest.mark.real
def test_two_ranks_meet_add_and_exchange_data() -> None:
    trial = _try((*TORCHRUN, "train.py", "--epochs", "3"))
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
