"""Which number a child of multiprocessing was given by who starts it."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import pytest

from lightning_hangcheck.hooks.zero_code.groups import number_of

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


def _train(rank: int, world_size: int) -> None: ...


def _read(path: str, index: int = 0) -> None: ...


def _child(target: Any, *arguments: object, **named: object) -> BaseProcess:
    return multiprocessing.Process(target=target, args=arguments, kwargs=named)


@pytest.mark.parametrize(
    ("process", "number"),
    [
        (_child(_train, 1, 2), 1),
        (_child(_train, rank=3, world_size=4), 3),
        (_child(_train, "1", 2), None),
        (_child(_train, True, 2), None),
        (_child(_train, -1, 2), None),
        (_child(_train, 1, 2, 3), None),
        (_child(_read, "file", 1), None),
        (_child(print, 1), None),
        (_child(None), None),
    ],
)
def test_the_number_is_what_the_target_takes_as_its_rank(
    process: BaseProcess, number: int | None
) -> None:
    assert number_of(process) == number


def test_a_process_of_ones_own_class_may_carry_its_rank() -> None:
    class Trainer(multiprocessing.Process):
        rank = 2

    assert number_of(Trainer()) == 2


def test_torch_numbers_the_children_that_it_spawns() -> None:
    target = vars(pytest.importorskip("torch.multiprocessing.spawn"))["_wrap"]
    assert number_of(_child(target, _read, 5, ("file",), "errors")) == 5
