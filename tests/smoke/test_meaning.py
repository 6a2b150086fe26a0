"""What it says which of the runs hang, and the three known pictures."""

from __future__ import annotations

import msgspec
import pytest
from cases import IN_BARRIER, IN_INIT, IN_LOAD, job, rank
from smoke.smoke_outcomes import WHOLE, outcomes

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.verdict import LastCheckpoint, RankState, Verdict
from lightning_hangcheck.smoke.sequence import first_trouble, interpret, name_picture


@pytest.mark.parametrize(
    ("command", "results", "says"),
    [
        (WHOLE, "...", "all ended well"),
        (WHOLE, ".H.", "only with workers: the DataLoader, or what its fork copies"),
        (WHOLE, "HH.", "only with 2 ranks: communication"),
        (WHOLE, "LL.", "only with 2 ranks: communication"),
        (WHOLE, "FF.", "only with 2 ranks: communication"),
        (WHOLE, "HHH", "alone, too: the program itself"),
        (WHOLE, "LLL", "the limit may be too short"),
        (WHOLE, "..H", "only alone: the program needs what a launcher gives"),
        ("train.py {devices}", "H.", "only with 2 ranks"),
        ("train.py {devices}", "HH", "alone, too"),
        ("train.py {workers}", ".H", "only with workers"),
        ("train.py {workers}", "HH", "without workers, too"),
        ("train.py", "H", "nothing was compared"),
        ("train.py", ".", "nothing was compared"),
    ],
)
def test_which_runs_hang_says_where_to_look(command: str, results: str, says: str) -> None:
    assert says in interpret(outcomes(results, command)).sentence


def test_a_run_that_hangs_comes_before_one_that_only_failed() -> None:
    trouble = first_trouble(outcomes("FH."))
    assert trouble is not None
    assert trouble.trial.name == "2 ranks, 1 worker"
    assert first_trouble(outcomes("...")) is None


def test_all_at_the_trainer() -> None:
    verdict = judge(job(rank(0, IN_INIT, silent=400.0), rank(1, IN_INIT, silent=400.0)))
    assert name_picture(verdict).startswith("at the Trainer: all ranks are")


def _seen(*reached: tuple[int, int | None]) -> Verdict:
    states = tuple(
        RankState(
            rank=number,
            phase="training_step",
            last_checkpoint=LastCheckpoint(number=mark, name="Model created", at=""),
            step=step,
        )
        for number, (mark, step) in enumerate(reached)
    )
    return msgspec.structs.replace(judge(job(rank(0, IN_LOAD), rank(1, IN_BARRIER))), ranks=states)


@pytest.mark.parametrize(
    ("reached", "picture"),
    [
        (((5, None), (4, None)), "one rank ahead: rank 0 has come to checkpoint 5 Model created"),
        (((11, 3), (11, 3), (11, 4)), "one rank ahead: rank 2 has come to checkpoint 11 Model"),
        (((11, 4), (11, 4), (11, 3)), ""),
        (((11, 4), (11, 4)), ""),
        (((5, None),), ""),
    ],
)
def test_one_rank_ahead(reached: tuple[tuple[int, int | None], ...], picture: str) -> None:
    assert name_picture(_seen(*reached)).startswith(picture)
    assert bool(name_picture(_seen(*reached))) == bool(picture)
