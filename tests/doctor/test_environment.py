"""The environment that a run gets: its Python and its settings, well and in the way."""

from __future__ import annotations

import sys

import pytest

from lightning_hangcheck.doctor.environment import debug_settings, python_version


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9), "failed"), ((3, 10), "ok"), ((3, 14), "ok"), ((3, 15), "warning")],
)
def test_pythons_outside_the_known_range_are_told(version: tuple[int, int], status: str) -> None:
    check = python_version(version)
    assert check.status == status
    assert bool(check.remedy) == (status != "ok")


def test_this_python_will_do() -> None:
    assert python_version().sentence == "Python {}.{}".format(*sys.version_info[:2])


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "crashes DDP on gloo"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "4.4 times"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "without end"),
        ("NCCL_ASYNC_ERROR_HANDLING", "0", "without end"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1", "watchdog"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "100", "stall timeout of 300 s"),
        ("HANGCHECK_DISABLE", "1", "switches everything off"),
        ("HANGCHECK_STALL_TIMEOUT", "soon", "the defaults apply"),
    ],
)
def test_a_setting_that_is_in_the_way_is_named_with_a_remedy(
    variable: str, value: str, named: str
) -> None:
    (check,) = debug_settings({variable: value})
    assert check.status == "warning"
    assert variable in check.sentence
    assert named in check.sentence
    assert variable in check.remedy or "HANGCHECK_STALL_TIMEOUT" in check.remedy


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TORCH_DISTRIBUTED_DEBUG": "INFO"},
        {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480"},
        {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "never"},
    ],
)
def test_harmless_settings_give_one_ok(environment: dict[str, str]) -> None:
    (check,) = debug_settings(environment)
    assert check.status == "ok"
