"""Which runs a smoke test is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_hangcheck.smoke.sequence import plan_trials, reference_trials

BOTH = ("torchrun", "--nproc_per_node={devices}", "train.py", "--num_workers", "{workers}")


def test_both_placeholders_give_the_whole_sequence() -> None:
    trials = plan_trials(BOTH)
    assert [trial.name for trial in trials] == [
        "2 ranks, 0 workers",
        "2 ranks, 1 worker",
        "1 process",
    ]
    assert [" ".join(trial.command) for trial in trials] == [
        "torchrun --nproc_per_node=2 train.py --num_workers 0",
        "torchrun --nproc_per_node=2 train.py --num_workers 1",
        "torchrun --nproc_per_node=1 train.py --num_workers 0",
    ]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("--devices={devices}", ["2 ranks", "1 process"]),
        ("--num_workers={workers}", ["0 workers", "1 worker"]),
        ("--devices=2", ["as given"]),
    ],
)
def test_runs_that_would_be_equal_are_made_once(word: str, names: list[str]) -> None:
    assert [trial.name for trial in plan_trials(("python", "train.py", word))] == names


def test_other_braces_are_the_users_own() -> None:
    (trial,) = plan_trials(("python", "-c", "print({'devices': {}})"))
    assert trial.command[-1] == "print({'devices': {}})"


def test_the_reference_script_runs_alone_without_a_launcher() -> None:
    trials = reference_trials(Path("logs"))
    assert ["torch.distributed.run" in trial.command for trial in trials] == [True, True, False]
    assert all(
        Path(word).is_file() for trial in trials for word in trial.command if "train_" in word
    )
