"""What earlier runs of a command let one expect of it."""

from __future__ import annotations

import pytest
from doctor.launching.runs import run

from lightning_hangcheck.doctor.launching import expect

TRAIN = "torchrun --nproc_per_node=2 train.py --lr 1e-4"


def _seconds(command: str, *runs: object) -> float | None:
    found = expect(command.split(), runs)  # type: ignore[arg-type]
    return None if found is None else found.seconds


def test_the_newest_run_of_the_same_command_tells() -> None:
    runs = (run(TRAIN, 100.0), run(TRAIN, 200.0), run("python other.py", 900.0))
    assert _seconds(TRAIN, *runs) == 200.0


@pytest.mark.parametrize("other", ["torchrun --nproc_per_node=4 train.py --lr 1e-4", "", "a 'b"])
def test_another_command_tells_nothing(other: str) -> None:
    assert _seconds(TRAIN, run(other, 100.0)) is None


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


def test_a_run_that_was_not_done_is_the_least_that_it_takes() -> None:
    found = expect(TRAIN.split(), (run(TRAIN, 900.0, "crashed"), run(TRAIN, 300.0, "dead")))
    assert found is not None
    assert (found.seconds, found.done) == (900.0, False)


def test_a_run_that_was_done_is_believed_before_one_that_was_not() -> None:
    found = expect(TRAIN.split(), (run(TRAIN, 300.0), run(TRAIN, 900.0, "crashed")))
    assert found is not None
    assert (found.seconds, found.done) == (300.0, True)
