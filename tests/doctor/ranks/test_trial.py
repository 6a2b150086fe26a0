"""Ranks really started by torchrun: they meet, one freezes, they cannot meet, one never comes."""

from __future__ import annotations

import os

import pytest
from processes import PROGRAMS, free_port
from subjects import subject

from lightning_hangcheck.doctor.launch import read_launch
from lightning_hangcheck.doctor.ranks import (
    PROGRAM,
    Limits,
    Trial,
    judge_trial,
    ranks_start,
    read_note,
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
    trial = _try((*TORCHRUN, "train.py", "--epochs", "3"))
    assert [(check.check, check.status) for check in judge_trial(trial)] == [
        ("ranks start", "ok"),
        ("rendezvous (gloo)", "ok"),
        ("barrier (gloo)", "ok"),
        ("all_reduce (gloo)", "ok"),
        ("pairs (gloo)", "ok"),
    ], trial


@pytest.mark.real
def test_a_rank_that_freezes_is_named_with_its_step_and_is_ended() -> None:
    trial = _try(
        TORCHRUN,
        Limits(step_s=10.0),
        PYTHONPATH=str(PROGRAMS / "stopping"),
        TEST_STOPPED_RANK="1",
        TEST_STOPPED_AT='"done", "rank": 1, "restarts": 0, "step": "barrier"',
    )
    *_, last = judge_trial(trial)
    assert last.status == "failed", trial
    assert last.sentence.startswith("rank 0 hangs in all_reduce (gloo), rank 1 has not come there")


@pytest.mark.real
def test_an_interface_that_is_not_there_fails_in_the_rendezvous() -> None:
    """A launcher that starts failed ranks again changes nothing of that."""
    trial = _try((*TORCHRUN, "--max-restarts=1"), GLOO_SOCKET_IFNAME="no-such-0")
    *_, last = judge_trial(trial)
    assert (last.check, last.status) == ("rendezvous (gloo)", "failed"), trial
    assert "no-such-0" in last.sentence


@pytest.mark.real
def test_a_node_that_never_comes_is_given_up_within_the_limit() -> None:
    words = ("torchrun", "--nnodes=2", "--node_rank=0", f"--master_port={free_port()}")
    trial = _try((*words, "--master_addr=127.0.0.1", "--nproc_per_node=1"), Limits(start_s=3.0))
    (check,) = judge_trial(trial)
    assert check.status == "failed"
    assert check.sentence.startswith("no rank was heard (given up after 3 s")


def test_a_launcher_that_is_not_there_fails() -> None:
    checks = ranks_start(subject("/no/such/torchrun --nproc_per_node=2"))
    assert [check.status for check in checks] == ["failed"]
    assert "cannot be started" in checks[0].sentence


def test_without_a_launcher_nothing_is_started() -> None:
    assert ranks_start(subject("python train.py")) == ()
    assert ranks_start(subject()) == ()


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


def test_a_note_is_read_behind_what_a_launcher_puts_in_front() -> None:
    note = read_note(b'[default0]:hangcheck-trial: {"did": "start", "rank": 3, "world_size": 4}')
    assert note is not None
    assert (note.did, note.rank, note.world_size) == ("start", 3, 4)
    assert read_note(b"Downloading...") is None
    assert read_note(b"hangcheck-trial: {torn") is None
