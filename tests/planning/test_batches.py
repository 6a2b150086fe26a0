"""Steps of gradient accumulation for a buffer of samples: a whole number, or what would be one."""

from __future__ import annotations

import pytest

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.batches import gradient_accumulation


@pytest.mark.parametrize(
    ("buffer", "world_size", "micro_batch", "steps"), [(512, 2, 4, 64), (8, 2, 4, 1), (7, 1, 1, 7)]
)
def test_a_buffer_that_fits_gives_its_steps(
    buffer: int, world_size: int, micro_batch: int, steps: int
) -> None:
    assert gradient_accumulation(buffer, world_size, micro_batch) == steps


def refused(buffer: int, world_size: int, micro_batch: int) -> str:
    with pytest.raises(BadUsage) as caught:
        gradient_accumulation(buffer, world_size, micro_batch)
    return str(caught.value)


def test_a_buffer_that_does_not_fit_is_refused_with_what_would() -> None:
    said = refused(500, 6, 4)
    assert "buffer 500 is not a multiple of world_size 6 x micro_batch 4 = 24" in said
    assert "gradient accumulation would be 20.83" in said
    assert "buffer=504 (21 steps) or buffer=480 (20 steps)" in said
    for buffer in (504, 480):
        assert gradient_accumulation(buffer, 6, 4) == buffer / 24


def test_a_micro_batch_that_fits_the_buffer_is_offered_where_there_is_one() -> None:
    assert "or micro_batch=5 (50 steps) or micro_batch=2 (125 steps)" in refused(500, 2, 4)
    assert gradient_accumulation(500, 2, 5) == 50
    assert "micro_batch=" not in refused(501, 2, 4)


def test_a_buffer_below_one_step_of_all_ranks_is_not_offered_zero() -> None:
    assert "write buffer=32 (1 step)" in refused(5, 8, 4)
    assert "buffer=0" not in refused(5, 8, 4)


@pytest.mark.parametrize("numbers", [(0, 2, 4), (8, 0, 4), (8, 2, -1), (8, 2, True), (8.0, 2, 4)])
def test_what_is_no_count_is_refused(numbers: tuple[int, int, int]) -> None:
    assert "is not a whole number above 0" in refused(*numbers)
