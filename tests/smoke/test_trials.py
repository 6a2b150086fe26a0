"""Trials of a smoke run: planned and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.smoke import Outcome, interpret, plan_trials, reference_trials

if TYPE_CHECKING:
    from lightning_hangcheck.smoke import Result

WHOLE = "train.py {devices} {workers}"


def outcomes(results: str, command: str = WHOLE) -> list[Outcome]:
    """One outcome for each planned run: ``.`` passed, ``H`` hang, ``L`` late, ``F`` failed."""
    kinds: dict[str, Result] = {".": "passed", "H": "hang", "L": "late", "F": "failed"}
    trials = plan_trials(command.split())
    return [
        Outcome(
            trial=trial,
            result=kinds[sign],
            seconds=12.34,
            where="",
            verdict=None,
            run_folder=f"hangcheck_runs/x-{trial.slug}",
        )
        for trial, sign in zip(trials, results, strict=True)
    ]


@pytest.mark.parametrize(
    ("words", "trials"),
    [
        (
            "torchrun --nproc_per_node={devices} a.py --num_workers {workers}",
            {
                "2 ranks, 0 workers": "torchrun --nproc_per_node=2 a.py --num_workers 0",
                "2 ranks, 1 worker": "torchrun --nproc_per_node=2 a.py --num_workers 1",
                "1 process": "torchrun --nproc_per_node=1 a.py --num_workers 0",
            },
        ),
        # runs that would be equal are made once
        ("a.py {devices}", {"2 ranks": "a.py 2", "1 process": "a.py 1"}),
        ("a.py --devices=2", {"as given": "a.py --devices=2"}),
        # other braces are the user's own
        ("python -c print({'devices':{}})", {"as given": "python -c print({'devices':{}})"}),
    ],
)
def test_placeholders_give_as_much_of_the_sequence_as_they_let_choose(
    words: str, trials: dict[str, str]
) -> None:
    planned = plan_trials(words.split())
    assert {trial.name: " ".join(trial.command) for trial in planned} == trials


def test_the_reference_script_runs_alone_without_a_launcher() -> None:
    trials = reference_trials(Path("logs"))
    assert ["torch.distributed.run" in trial.command for trial in trials] == [True, True, False]
    assert all(
        Path(word).is_file() for trial in trials for word in trial.command if "train_" in word
    )


@pytest.mark.parametrize(
    ("command", "results", "says"),
    [
        (WHOLE, "...", "all ended well"),
        (WHOLE, ".H.", "only with workers: the DataLoader, or what its fork copies"),
        (WHOLE, "HH.", "only with 2 ranks: communication"),
        (WHOLE, "HHH", "alone, too: the program itself"),
        (WHOLE, "LLL", "the limit may be too short"),
        ("train.py {devices}", "H.", "only with 2 ranks"),
        ("train.py {workers}", ".H", "only with workers"),
        ("train.py", "H", "nothing was compared"),
        ("train.py", ".", "nothing was compared"),
    ],
)
def test_which_runs_hang_says_where_to_look(command: str, results: str, says: str) -> None:
    assert says in interpret(outcomes(results, command))[0]
