"""The pace between batches is that of what comes in every pass, and of nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.judge.phase_of_life import rare_place
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.evidence import Frame, ProcessStack, Sample, ThreadStack
from lightning_hangcheck.model.naming.phase_words import UNKNOWN_PLACE

if TYPE_CHECKING:
    from lightning_hangcheck.model.naming.slugs import Phase

LOOP = Frame("advance", "/x/lightning/pytorch/loops/fit_loop.py", 1)
STEP = Frame("training_step", "/x/lightning/pytorch/strategies/strategy.py", 1)
VALIDATION = Frame("validation_step", "/x/lightning/pytorch/strategies/strategy.py", 1)
BACKWARD = Frame("_engine_run_backward", "/x/torch/autograd/graph.py", 1)
LOADER = Frame("__next__", "/x/torch/utils/data/dataloader.py", 1)
OPTIMIZER = Frame("Optimizer.wrapper", "/x/torch/optim/optimizer.py", 1)
USERS = Frame("evaluate", "/home/me/train.py", 7)


def rare(phase: Phase | None, *frames: Frame, batch: int | None = None) -> str:
    stack = ProcessStack(pid=1, source="py-spy", threads=(ThreadStack(tid=1, frames=frames),))
    return rare_place(Beat(pid=1, phase=phase, batch=batch), Sample(taken_ns=1, stack=stack))


@pytest.mark.parametrize(
    ("phase", "frames"),
    [
        ("training_step", (LOOP, STEP, USERS)),
        ("training_step", (USERS, BACKWARD)),
        ("validation", (LOOP, VALIDATION, USERS)),
        (None, (USERS,)),  # beats of the script's own
        ("generate", (USERS,)),
    ],
)
def test_calls_that_come_in_every_pass_have_its_pace(
    phase: Phase | None, frames: tuple[Frame, ...]
) -> None:
    assert not rare(phase, *frames)


@pytest.mark.parametrize(
    ("phase", "frames", "place"),
    [
        ("dataloading", (LOOP, USERS), "training_step"),  # on_train_epoch_end
        ("training_step", (LOOP, USERS), "training_step"),  # on_train_batch_end
        ("training_step", (USERS,), "evaluate"),  # after the last step of a plain loop
        ("validation", (LOOP, USERS), "training_step"),  # on_validation_epoch_end
        ("training_step", (LOOP, VALIDATION, USERS), "validation"),
        ("training_step", (LOOP, OPTIMIZER, USERS), "optimizer_step"),  # inverts now and then
    ],
)
def test_what_comes_now_and_then_is_a_place_of_its_own(
    phase: Phase, frames: tuple[Frame, ...], place: str
) -> None:
    assert rare(phase, *frames) == place


def test_a_step_that_the_optimizer_calls_has_the_pace_of_steps() -> None:
    assert not rare("training_step", LOOP, OPTIMIZER, STEP, USERS)


def test_a_loader_has_the_pace_of_steps_only_where_a_callback_told_the_batch() -> None:
    assert not rare("training_step", LOADER, batch=3)
    assert rare("training_step", LOADER) == "dataloading"


def test_without_a_stack_nothing_tells_the_place() -> None:
    assert rare_place(Beat(pid=1, phase="training_step"), Sample(taken_ns=1)) == UNKNOWN_PLACE
