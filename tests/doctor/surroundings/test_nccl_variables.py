"""Variables of NCCL by old names, a recorder that is off, generations of the backend."""

from __future__ import annotations

import pytest
from subjects import subject

from lightning_hangcheck.doctor.surroundings import (
    flight_recorder,
    nccl_backend,
    nccl_variables,
)


def test_a_name_of_old_comes_with_the_new_one() -> None:
    (check,) = nccl_variables(subject(NCCL_BLOCKING_WAIT="1"))
    assert check.status == "warning"
    assert check.remedy == "unset NCCL_BLOCKING_WAIT; export TORCH_NCCL_BLOCKING_WAIT=1"


def test_new_names_are_fine() -> None:
    (check,) = nccl_variables(subject(TORCH_NCCL_BLOCKING_WAIT="0", NCCL_DEBUG="INFO"))
    assert check.status == "ok"


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
@pytest.mark.parametrize(("size", "status"), [("0", "warning"), ("2000", "ok")])
def test_a_recorder_that_is_off_is_a_warning(name: str, size: str, status: str) -> None:
    (check,) = flight_recorder(subject(**{name: size}))
    assert check.status == status


@pytest.mark.parametrize(
    ("torch", "named"),
    [("2.13.0+cpu", "first one"), ("2.15.1", "nccl2"), ("2.16a0+git1", "nccl2")],
)
def test_the_generation_follows_from_the_version(torch: str, named: str) -> None:
    (check,) = nccl_backend(subject(), torch=torch)
    assert (check.status, named in check.sentence) == ("ok", True)
