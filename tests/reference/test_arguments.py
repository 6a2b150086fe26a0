"""The reference script's command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from reference.arguments import parse_arguments, stays_alone

if TYPE_CHECKING:
    from reference.arguments import Arguments

TWO_RANKS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def _parse(words: str, **environment: str) -> Arguments:
    return parse_arguments(words.split(), environment)


def test_defaults() -> None:
    arguments = _parse("")
    assert (arguments.batch_size, arguments.max_steps) == (32, 10000)
    assert (arguments.fast_dev_run, arguments.num_workers) == (0, 0)
    assert (arguments.devices, arguments.inject) == (1, ())


def test_devices_follow_the_launcher() -> None:
    assert _parse("", **TWO_RANKS).devices == 2


@pytest.mark.parametrize("words", ["--local-rank=1", "--local_rank 1"])
def test_the_local_rank_of_torch_distributed_launch_is_accepted(words: str) -> None:
    """It says no more than the variable of that name, which the launcher sets as well."""
    assert _parse(words, **TWO_RANKS) == _parse("", **TWO_RANKS)


def test_a_strategy_is_taken_as_it_is() -> None:
    assert _parse("").strategy is None
    assert _parse("--strategy ddp_find_unused_parameters_true").strategy == (
        "ddp_find_unused_parameters_true"
    )


@pytest.mark.parametrize(
    ("words", "environment", "alone"),
    [
        ("", {}, True),
        ("--devices 2", {}, False),
        ("--strategy ddp_spawn", {}, False),
        ("", TWO_RANKS, False),
        ("", {"LOCAL_RANK": "0"}, False),
        ("", {"WORLD_SIZE": "2"}, False),
        ("", {"SLURM_NNODES": "2"}, False),
    ],
)
def test_only_a_process_that_nobody_joins_stays_alone(
    words: str, environment: dict[str, str], alone: bool
) -> None:
    assert stays_alone(_parse(words, **environment), environment) == alone


def test_faults_add_up() -> None:
    arguments = _parse("--inject straggler@1 --inject slow_save@0:7", **TWO_RANKS)
    assert [fault.cause for fault in arguments.inject] == ["straggler", "slow_save"]


@pytest.mark.parametrize(("asked", "given"), [("", 1), ("--num_workers 3", 3)])
def test_worker_fault_gets_a_worker(asked: str, given: int) -> None:
    words = f"{asked} --inject dataloader_worker@1"
    assert _parse(words, **TWO_RANKS).num_workers == given


def test_save_fault_gets_a_save_at_its_step() -> None:
    assert _parse("--inject slow_save@0:7").save_every == 7


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--inject frozen@1", "'frozen@1' names no fault; use one of rank_stalled, spinning"),
        ("--inject spinning", "'spinning' is not CAUSE@RANK[:STEP]"),
        ("--inject spinning@7", "there is no rank 7 in a world of 1; write a rank from 0 to 0"),
        ("--inject rendezvous@0", "start the script with torchrun"),
        ("--max_steps many", "'many' is not a whole number"),
        ("--max_steps -3", "'-3' is not a whole number"),
        ("--nonsense", "--nonsense"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _parse(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert sentence in said


def test_help_describes_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse("--help")
    assert "rank_stalled      waits in training_step" in capsys.readouterr().out
