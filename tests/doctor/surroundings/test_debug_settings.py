"""Settings of the environment, harmless and in the way."""

from __future__ import annotations

import pytest
from subjects import subject

from lightning_hangcheck.doctor.surroundings import debug_settings


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
    (check,) = debug_settings(subject(**{variable: value}))
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
    (check,) = debug_settings(subject(**environment))
    assert check.status == "ok"
