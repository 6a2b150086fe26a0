"""What ``--inject`` accepts, and how it refuses the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.faults import KINDS, BadFault, Fault, parse_fault

FIRST_SET = [
    "rank_stalled",
    "spinning",
    "process_stopped",
    "process_dead",
    "crashed",
    "logger_init",
    "rendezvous",
    "dataloader_worker",
    "slow_first_step",
    "slow_save",
    "straggler",
    "uneven_pauses",
]


def test_catalogue_is_the_first_set() -> None:
    assert sorted(KINDS) == sorted(FIRST_SET)


@pytest.mark.parametrize("cause", FIRST_SET)
def test_every_fault_can_be_asked_for_by_name(cause: str) -> None:
    assert parse_fault(f"{cause}@0") == Fault(cause, 0, KINDS[cause].default_step)


@given(rank=st.integers(0, 5000), step=st.integers(2, 10**6))
def test_rank_and_step_are_read_as_written(rank: int, step: int) -> None:
    assert parse_fault(f"spinning@{rank}:{step}") == Fault("spinning", rank, step)


@pytest.mark.parametrize("text", ["", "spinning", "spinning@", "@1", "spinning@-1", "spinning@1:"])
def test_refusal_lists_the_names(text: str) -> None:
    """Also for text that has no fault's name in it."""
    with pytest.raises(BadFault) as refused:
        parse_fault(text)
    assert all(name in str(refused.value) for name in FIRST_SET)


def test_unknown_name_is_repeated_and_the_names_listed() -> None:
    with pytest.raises(BadFault, match=r"'spining@1' names no fault; use one of rank_stalled"):
        parse_fault("spining@1")


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("logger_init@0:3", "write logger_init@0"),
        ("rendezvous@1:0", "write rendezvous@1"),
        ("straggler@1:1", "write straggler@1:2 or a later step"),
        ("slow_save@1", "write slow_save@0"),
    ],
)
def test_fault_that_cannot_strike_there_says_what_to_write(text: str, instead: str) -> None:
    with pytest.raises(BadFault, match=instead):
        parse_fault(text)
